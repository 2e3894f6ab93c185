// The processes of strait train under mpirun, to be found, signalled and watched one by one.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "strait/base/clock.h"
#include "tests/app/program.h"
#include "tests/paths.h"

namespace strait::test {

/// A file of /proc, whole; empty when the process is gone.
inline std::string proc_text(pid_t process, const std::string& name) {
  const int file = ::open(("/proc/" + std::to_string(process) + "/" + name).c_str(), O_RDONLY);
  if (file < 0) return "";
  std::string text;
  char buffer[4096];
  for (ssize_t bytes = 0; (bytes = ::read(file, buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(bytes));
  ::close(file);
  return text;
}

struct JobOptions {
  bool recovery = true;  // otherwise the launcher ends all ranks when one is lost
  int64_t hosts = 1;     // emulated ones when there are several, which needs root
};

/// The launcher and its ranks, which survive the loss of one of them. `folder` is named in the
/// arguments of this job alone; it gets stdout and stderr of each rank, and code.R with the exit
/// code of rank R when `with_codes`: a shell stands between the launcher and it.
class MpiJob {
 public:
  MpiJob(const std::vector<std::string>& arguments, int64_t ranks, const std::string& folder,
         bool with_codes, const std::string& program = test::in_build("strait"),
         const JobOptions& options = {})
      : ranks_(ranks),
        folder_(folder),
        program_(program),
        child_(arguments, folder + "/log", launcher(with_codes, options), program) {}
  ~MpiJob() {
    for (const auto& [rank, process] : find()) ::kill(process, SIGKILL);
  }

  Child& launcher() { return child_; }
  int64_t ranks() const { return ranks_; }

  /// The processes of the ranks that are alive now. Zombies are not.
  std::map<int64_t, pid_t> find() const {
    std::map<int64_t, pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const pid_t process = std::stoi(name);
      if (!is_rank(process)) continue;
      const std::string environment = proc_text(process, "environ");
      const std::string key = "OMPI_COMM_WORLD_RANK=";
      const size_t at = environment.find(key);
      if (at != std::string::npos)
        found[std::stoll(environment.substr(at + key.size(), 6))] = process;
    }
    return found;
  }
  bool is_rank(pid_t process) const {
    const std::string line = proc_text(process, "cmdline");
    return line.starts_with(program_) && line.find(folder_ + "/") != std::string::npos;
  }
  /// All of them, once they exist; fewer when the launcher ends before, or after a minute.
  std::map<int64_t, pid_t> find_all() {
    const double end = now_seconds() + 60;
    while (true) {
      const auto found = find();
      const bool all = static_cast<int64_t>(found.size()) == ranks_;
      if (all || !child_.running() || now_seconds() > end) return found;
      sleep_seconds(0.02);
    }
  }
  /// Seconds until none of `processes` is left, at most `limit`.
  double wait_for_end(const std::map<int64_t, pid_t>& processes, double limit) const {
    const double began = now_seconds();
    for (const auto& [rank, process] : processes)
      while (is_rank(process) && now_seconds() < began + limit) sleep_seconds(0.01);
    return now_seconds() - began;
  }
  /// False when the launcher still runs after `limit` seconds.
  bool ends_within(double limit) {
    const double began = now_seconds();
    while (child_.running() && now_seconds() < began + limit) sleep_seconds(0.02);
    return !child_.running();
  }
  /// What `rank` wrote to stderr.
  std::string errors(int64_t rank) const {
    std::ifstream file(folder_ + "/out/1/rank." + std::to_string(rank) + "/stderr");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// Exit code of `rank`; -1 without one.
  int code(int64_t rank) const {
    std::ifstream file(folder_ + "/code." + std::to_string(rank));
    int code = -1;
    return file >> code ? code : -1;
  }

 private:
  std::vector<std::string> launcher(bool with_codes, const JobOptions& options) const {
    std::vector<std::string> all = mpirun(ranks_);
    if (options.hosts > 1)
      all = {test::in_source("bench/netlab"),
             "--hosts",
             std::to_string(options.hosts),
             "--ranks-per-host",
             std::to_string(ranks_ / options.hosts),
             "--rate",
             "1gbit",
             "--mpirun",
             "--enable-recovery --output-filename " + folder_ + "/out",
             "--"};
    else
      all.insert(all.end(), {"--output-filename", folder_ + "/out"});
    if (options.recovery && options.hosts == 1) all.push_back("--enable-recovery");
    if (with_codes)
      all.insert(all.end(), {"sh", "-c",
                             "\"$@\"; code=$?; echo $code > " + folder_ +
                                 "/code.$OMPI_COMM_WORLD_RANK; exit $code",
                             "sh"});
    return all;
  }

  const int64_t ranks_;
  const std::string folder_, program_;
  Child child_;
};

}  // namespace strait::test
