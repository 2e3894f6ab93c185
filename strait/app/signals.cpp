#include "strait/app/signals.h"

#include <semaphore.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <utility>

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
void mask_stop_signals(int how) {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : kSignals) ::sigaddset(&signals, number);
  ::pthread_sigmask(how, &signals, nullptr);
}

constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

enum Wanted : int { kNothing, kRequest, kCrash, kEnd };
sem_t wake_dumper;
std::atomic<int> wanted{kNothing};
std::atomic<bool> crash_dumped{false};
struct sigaction before_crashes[std::size(kCrashes)];  // a sanitizer's, most often the default

void on_request(int) {
  int nothing = kNothing;
  wanted.compare_exchange_strong(nothing, kRequest);
  ::sem_post(&wake_dumper);
}

void on_crash(int number) {
  wanted.store(kCrash);
  ::sem_post(&wake_dumper);
  for (int turn = 0; turn < 200 && !crash_dumped.load(); ++turn) {
    const timespec pause{0, 10'000'000};
    ::nanosleep(&pause, nullptr);
  }
  for (size_t i = 0; i < std::size(kCrashes); ++i)
    if (kCrashes[i] == number) ::sigaction(number, &before_crashes[i], nullptr);
  std::raise(number);
}

}  // namespace

void hold_stop_signals() { mask_stop_signals(SIG_BLOCK); }

void release_stop_signals() { mask_stop_signals(SIG_UNBLOCK); }

StopSignals::StopSignals() {
  received_signal.store(0);
  // A file-size limit is an error of the write that meets it, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int number : kSignals) std::signal(number, on_signal);
  release_stop_signals();
}

StopSignals::~StopSignals() {
  for (const int number : kSignals) std::signal(number, number == SIGINT ? SIG_DFL : SIG_IGN);
  std::signal(SIGXFSZ, SIG_DFL);
}

DumpSignals::DumpSignals() {
  ::sem_init(&wake_dumper, 0, 0);
  wanted.store(kNothing);
  crash_dumped.store(false);
  worker_ = std::thread([this] { work(); });
  std::signal(SIGQUIT, on_request);
  struct sigaction crash {};
  crash.sa_handler = on_crash;
  for (size_t i = 0; i < std::size(kCrashes); ++i)
    ::sigaction(kCrashes[i], &crash, &before_crashes[i]);
}

DumpSignals::~DumpSignals() {
  std::signal(SIGQUIT, SIG_IGN);
  for (size_t i = 0; i < std::size(kCrashes); ++i)
    ::sigaction(kCrashes[i], &before_crashes[i], nullptr);
  wanted.store(kEnd);
  ::sem_post(&wake_dumper);
  worker_.join();
}

void DumpSignals::set(std::function<void(const std::string& kind)> dump) {
  const std::lock_guard<std::mutex> lock(mutex_);
  dump_ = std::move(dump);
}

void DumpSignals::work() {
  while (true) {
    while (::sem_wait(&wake_dumper) != 0) {  // a signal came in between
    }
    const int what = wanted.exchange(kNothing);
    if (what == kEnd) return;
    if (what == kNothing) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (dump_) dump_(what == kCrash ? "crash" : "request");
    if (what == kCrash) crash_dumped.store(true);
  }
}

const std::atomic<int>& StopSignals::received() const { return received_signal; }

void end_by(int number) {
  std::signal(number, SIG_DFL);
  std::raise(number);
  std::_Exit(128 + number);
}

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
