#include "strait/app/signals.h"

#include <csignal>

namespace strait::app {
namespace {

// A handler can reach nothing but a global; it belongs to the process, as signals do.
std::atomic<int> received_signal{0};

void on_signal(int number) {
  if (number == SIGINT && received_signal.load() == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
    return;
  }
  received_signal.store(number);
}

constexpr int kSignals[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT};

}  // namespace

StopSignals::StopSignals() {
  received_signal.store(0);
  // A file-size limit or a closed pipe is an error of the write that meets it, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  for (const int number : kSignals) std::signal(number, on_signal);
}

StopSignals::~StopSignals() {
  for (const int number : kSignals) std::signal(number, SIG_DFL);
  std::signal(SIGXFSZ, SIG_DFL);
  std::signal(SIGPIPE, SIG_DFL);
}

const std::atomic<int>& StopSignals::received() const { return received_signal; }

std::string signal_name(int number) {
  switch (number) {
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGUSR2:
      return "SIGUSR2";
    case SIGINT:
      return "SIGINT";
    default:
      return "signal " + std::to_string(number);
  }
}

}  // namespace strait::app
