#include "strait/app/bench_processes.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "strait/app/signals.h"
#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/cli/report_envelope.h"
#include "strait/comm/launch.h"

#ifdef STRAIT_MPI
#include "strait/app/agreement.h"
#include "strait/bench/bench_mpi.h"
#include "strait/probe/probe_mpi.h"
#endif

extern char** environ;

namespace strait::app {
namespace {

#ifdef STRAIT_MPI

Json run_here(const measure::CollectiveCase& wanted, const comm::Launch& launch,
              cli::Output& output,
              const std::function<void(const measure::BenchRow&, cli::Output&)>& print) {
  comm::MpiSession session(
      [&](const std::exception_ptr& cause) { output.leave(cause, Json::object()); });
  comm::check_launch(launch, session.size());
  measure::CollectiveCase collective = wanted;
  collective.ranks = session.size();
  measure::BenchReport report;
  report.subject = "collective";
  report.rows.push_back(measure::bench_collective_mpi(collective, session));
  if (session.rank() == 0) print(report.rows.front(), output);
  output.partial() = measure::bench_report_to_json(report);
  if (!report.verified())
    throw InternalError("the result of the benchmark is wrong: " + report.rows.front().failure);
  return measure::bench_report_to_json(report);
}

/// Exit code of `process`, or 128 + the signal that ended it. A signal that comes for this process
/// goes on to that one.
int wait_for(pid_t process, const StopSignals& signals) {
  constexpr auto kPause = std::chrono::milliseconds(10);
  int status = 0, told = 0;
  while (::waitpid(process, &status, WNOHANG) == 0) {
    const int number = signals.received().load();
    if (number != told) ::kill(process, number);
    told = number;
    std::this_thread::sleep_for(kPause);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Ignores none of the signals that this program ignores.
pid_t start(std::vector<std::string> words, bool silent) {
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  sigset_t usual;
  ::sigemptyset(&usual);
  for (const int number : {SIGPIPE, SIGXFSZ}) ::sigaddset(&usual, number);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (silent) posix_spawn_file_actions_adddup2(&actions, 2, 1);
  pid_t process = -1;
  const int failed = ::posix_spawnp(&process, raw[0], &actions, &attributes, raw.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) throw UserError("bench: mpirun cannot be started: " + errno_text(failed));
  return process;
}

/// mpirun with this program and the same case; its lines go where ours would.
int run_ranks(const cli::Command& command, int64_t ranks, const std::string& report,
              const StopSignals& signals) {
  std::vector<std::string> words = {"mpirun", "--oversubscribe", "-n", std::to_string(ranks)};
  if (::geteuid() == 0) words.push_back("--allow-run-as-root");
  words.insert(words.end(), {std::filesystem::read_symlink("/proc/self/exe").string(), "bench",
                             command.subject, "--json", report});
  for (const auto& [key, value] : command.case_keys) {
    std::string flag = "--" + key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    words.insert(words.end(), {flag, value});
  }
  return wait_for(start(std::move(words), command.json == "-"), signals);
}

/// Throws what the ranks have ended by, as their report tells it.
[[noreturn]] void throw_as_ranks(const Json& report) {
  const std::string message = "the ranks failed: " + report.at("error").at("message").as_string();
  switch (static_cast<ExitCode>(report.at("exit_code").as_integer())) {
    case ExitCode::kUser:
      throw UserError(message);
    case ExitCode::kNothingFits:
      throw NothingFits(message);
    case ExitCode::kPeerLost:
      throw PeerLost(message);
    case ExitCode::kInputOutput:
      throw InputOutputError(message);
    default:
      throw InternalError("bench: " + message);
  }
}

Json run_elsewhere(const cli::Command& command, int64_t ranks) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("strait-bench-" + std::to_string(::getpid())))
          .string();
  int code = 0, signal = 0;
  {
    const StopSignals signals;
    code = run_ranks(command, ranks, path, signals);
    signal = signals.received().load();
  }
  if (signal != 0) {
    std::filesystem::remove(path);
    end_by(signal);
  }
  if (!std::filesystem::exists(path))
    throw InternalError("bench: mpirun ended with " + std::to_string(code) +
                        " and without a report");
  const Json report = Json::parse(read_file(path), path);
  std::filesystem::remove(path);
  if (code != 0) throw_as_ranks(report);
  return Json::object({{"subject", report.at("subject")},
                       {"verified", report.at("verified")},
                       {"rows", report.at("rows")}});
}

#endif

measure::ProbeResult probe_threads(const measure::ProbeOptions& options, const std::string& file) {
  cli::require_folder_of(file);
  return measure::probe(options);
}

}  // namespace

#ifdef STRAIT_MPI
measure::ProbeResult probe_ranks(const measure::ProbeOptions& options, const std::string& file,
                                 cli::Output& output, bool& lead) {
  const comm::Launch launch = comm::find_launch();
  if (!launch.launched()) return probe_threads(options, file);
  comm::MpiSession session(
      [&](const std::exception_ptr& cause) { output.leave(cause, Json::object()); });
  comm::check_launch(launch, session.size());
  if (options.ranks > 0 && options.ranks != session.size())
    throw UserError("probe: --ranks " + std::to_string(options.ranks) +
                    " under a launcher that has started " + std::to_string(session.size()) +
                    " processes; leave it out");
  lead = session.rank() == 0;
  Agreement(session).all([&] {
    if (lead) cli::require_folder_of(file);
  });
  return measure::probe_mpi(session, options);
}

Json bench_processes(const cli::Command& command, const measure::CollectiveCase& collective,
                     cli::Output& output,
                     const std::function<void(const measure::BenchRow&, cli::Output&)>& print) {
  measure::check_case(collective);
  const comm::Launch launch = comm::find_launch();
  return launch.launched() ? run_here(collective, launch, output, print)
                           : run_elsewhere(command, collective.ranks);
}
#else
measure::ProbeResult probe_ranks(const measure::ProbeOptions& options, const std::string& file,
                                 cli::Output&, bool&) {
  return probe_threads(options, file);
}

Json bench_processes(const cli::Command&, const measure::CollectiveCase&, cli::Output&,
                     const std::function<void(const measure::BenchRow&, cli::Output&)>&) {
  throw UserError("bench: this program was built without MPI; the nearest backend is \"threads\"");
}
#endif

}  // namespace strait::app
