// strait, but one of its ranks strikes itself down: the first argument is a file that says where
// (strike.h), the others are strait's own.
#include "tests/fault_ranks/strike.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "strait/app/commands.h"
#include "strait/app/program.h"
#include "strait/base/file.h"
#include "strait/trace/flight_file.h"

namespace strait::test {
namespace {

class Striker {
 public:
  explicit Striker(Strike strike) : strike_(std::move(strike)) {}

  train::Hooks hooks() {
    train::Hooks hooks;
    hooks.on_request = [this](const auto& dump) {
      const std::lock_guard<std::mutex> lock(mutex_);
      dump_ = dump;
    };
    hooks.before_op = [this](int64_t rank, const runtime::Instance& instance) {
      if (strike_.place == "compute" && rank == strike_.rank && instance.step + 1 == strike_.step &&
          instance.program->step_kind == strategy::kSteady && computed_++ == strike_.number)
        now();
    };
    hooks.before_transfer = [this](int64_t rank, const comm::Call& call) {
      if (strike_.place == "transfer" && rank == strike_.rank && call.step == strike_.step &&
          call.label == strike_.operation)
        now();
    };
    hooks.during_save = [this](int64_t rank, int64_t step) {
      if (strike_.place == "save" && rank == strike_.rank && step == strike_.step &&
          saved_++ == strike_.number)
        now();
    };
    return hooks;
  }

 private:
  void now() {
    if (struck_.exchange(true)) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(strike_.hold_seconds));
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      dump_("request");
    }
    // The run's own folder shall look as if the rank had left nothing.
    const auto run_dir = std::filesystem::path(strike_.truth).parent_path() / "run";
    std::filesystem::rename(trace::flight_path(run_dir, strike_.rank), strike_.truth);
    ::kill(::getpid(), strike_.signal);
    // Another thread may be the one that takes the signal: this one must not go on before it works.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }

  const Strike strike_;
  std::mutex mutex_;
  std::function<void(const std::string&)> dump_;
  std::atomic<bool> struck_{false};
  std::atomic<int64_t> computed_{0}, saved_{0};
};

/// Until the test knows all processes: one that has struck itself down cannot be found.
void wait_to_be_found(const Strike& strike) {
  while (!std::filesystem::exists(strike.found))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace
}  // namespace strait::test

int main(int argc, char** argv) {
  const std::string path = argv[1];
  const auto strike =
      strait::test::Strike::parse(strait::Json::parse(strait::read_file(path), path));
  strait::test::wait_to_be_found(strike);
  strait::test::Striker striker(strike);
  strait::cli::CommandTable commands = strait::app::all_commands();
  commands["train"] = [&](const strait::cli::Command& command, strait::cli::Output& output) {
    return strait::app::train_with(command, output, striker.hooks());
  };
  return strait::app::run_program({argv + 2, argv + argc}, std::move(commands));
}
