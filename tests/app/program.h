// Runs the commands of the program: in this process, or as a child that can be killed.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "strait/app/commands.h"
#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/cli/program_commands.h"
#include "strait/cli/run_command.h"
#include "tests/paths.h"
#include "tests/train/small_run.h"

extern char** environ;

namespace strait::test {

struct Ran {
  int exit_code = -1;
  std::string out, err;
  Json report;  // what --json FILE holds, or null
};

/// One command in this process. With `json_file`, --json is given and read back.
inline Ran run(std::vector<std::string> arguments, const std::string& json_file = "") {
  cli::CommandTable table = cli::program_commands();
  app::add_commands(table);
  if (!json_file.empty()) {
    arguments.push_back("--json");
    arguments.push_back(json_file);
  }
  std::ostringstream out, err;
  Ran ran;
  ran.exit_code = cli::run_command(arguments, table, {out, err});
  ran.out = out.str();
  ran.err = err.str();
  if (!json_file.empty() && std::filesystem::exists(json_file))
    ran.report = Json::parse(read_file(json_file), json_file);
  return ran;
}

/// The built program as a child process, its output in a file.
class Child {
 public:
  /// `launcher`: what starts it, such as {"mpirun", "-n", "2"}.
  Child(std::vector<std::string> arguments, const std::string& log,
        const std::vector<std::string>& launcher = {},
        const std::string& program = test::in_build("strait")) {
    arguments.insert(arguments.begin(), program);
    arguments.insert(arguments.begin(), launcher.begin(), launcher.end());
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    failed_ = ::posix_spawnp(&pid_, raw[0], &actions, nullptr, raw.data(), environ) != 0;
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Child() {
    if (!failed_ && !reaped_) {
      signal(SIGKILL);
      wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) { ::kill(pid_, number); }
  /// Returns once every thread stands still: the signal alone only asks for it.
  void stop() {
    signal(SIGSTOP);
    if (!reaped_ && ::waitpid(pid_, &status_, WUNTRACED) == pid_) reaped_ = !WIFSTOPPED(status_);
  }
  bool running() {
    if (!reaped_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
    return !reaped_ && !failed_;
  }
  /// Exit code, or 128 + the signal that ended it.
  int wait() {
    if (!reaped_) ::waitpid(pid_, &status_, 0);
    reaped_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool reaped_ = false, failed_ = false;
};

/// mpirun for so many ranks on this host.
inline std::vector<std::string> mpirun(int64_t ranks) {
  return {"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", std::to_string(ranks)};
}

inline void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// Waits until rank 0 of this launch has written the figures of a step, or the launcher has ended.
/// The run folder may hold those of a launch before.
inline void wait_for_step(Child& launcher, const std::string& run_dir) {
  const std::string path = run_dir + "/metrics.jsonl";
  std::error_code none;
  const auto before = std::filesystem::last_write_time(path, none);
  const auto bytes = none ? 0 : std::filesystem::file_size(path, none);
  while (launcher.running()) {
    const auto now = std::filesystem::file_size(path, none);
    if (!none && now > 0 &&
        (now != bytes || std::filesystem::last_write_time(path, none) != before))
      return;
    sleep_seconds(0.005);
  }
}

/// Whether the process has a handler of its own for `number`.
inline bool handles(pid_t process, int number) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  std::string line;
  while (std::getline(status, line))
    if (line.starts_with("SigCgt:"))
      return (std::stoull(line.substr(7), nullptr, 16) >> (number - 1) & 1) != 0;
  return false;
}

/// small_run as a file; returns its path.
inline std::string small_run_file(const std::string& folder) {
  const std::string path = folder + "/small.toml";
  write_text(folder, small_text(2000));
  std::ofstream(path) << "name = \"small\"\n[model]\npreset = \"nano-char\"\n"
                         "shape = { layers = 2, heads = 2, kv_heads = 2, width = 16, ffn_width = "
                         "40, context = 12 }\n"
                         "[data]\npath = \""
                      << folder
                      << "/text.txt\"\n"
                         "[train]\nsteps = 30\nglobal_batch_size = 8\n"
                         "[optimizer]\nlearning_rate = 3e-3\nwarmup_steps = 3\n"
                         "[evaluation]\nevery_steps = 0\n";
  return path;
}

/// The words that train it in `folder`/run with these keys too, and report to `json`.
inline std::vector<std::string> small_training(const std::string& folder, const std::string& json,
                                               const std::vector<std::string>& sets) {
  std::vector<std::string> words = {"train",  small_run_file(folder),
                                    "--json", json,
                                    "--set",  "output.run_dir=" + folder + "/run"};
  for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
  return words;
}

}  // namespace strait::test
