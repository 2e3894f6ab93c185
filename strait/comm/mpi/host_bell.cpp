#include "strait/comm/mpi/host_bell.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "strait/base/clock.h"

namespace strait::comm {
namespace {

constexpr auto kLook = std::chrono::milliseconds(10);
constexpr double kLastWords = 0.5;  // seconds for an alarm to leave a process that ends

/// What travels. Zero-filled: no alarm.
struct Ring {
  int64_t rank = -1, blamed = -1, step = -1;
  char operation[160] = {};
  char reason[2048] = {};
};

template <size_t N>
void put(char (&target)[N], const std::string& text) {
  std::memcpy(target, text.data(), std::min(text.size(), N - 1));
}

Ring packed(const HostBoard::Rung& rung) {
  Ring ring;
  ring.rank = rung.rank;
  ring.blamed = rung.place.rank.value_or(-1);
  ring.step = rung.place.step.value_or(-1);
  put(ring.operation, rung.place.operation.value_or(""));
  put(ring.reason, rung.reason);
  return ring;
}

/// Alive as long as a send may still read it.
Ring& outgoing() {
  static Ring ring;
  return ring;
}

}  // namespace

HostBell::HostBell(Messages& messages, HostBoard& board, int64_t rank,
                   std::vector<int64_t> elsewhere, std::function<void()> told)
    : messages_(messages),
      board_(board),
      rank_(rank),
      elsewhere_(std::move(elsewhere)),
      told_(std::move(told)),
      thread_([this] { work(); }) {}

HostBell::~HostBell() {
  stopping_.store(true);
  thread_.join();
}

void HostBell::work() {
  while (!stopping_.load()) {
    if (listen()) told_();
    if (board_.rung() && !has_told_) tell();
    std::this_thread::sleep_for(kLook);
  }
  if (board_.rung() && !has_told_) tell();
  const SteadyTime end = deadline_after(kLastWords);
  const auto left = [&] {
    return std::any_of(sends_.begin(), sends_.end(),
                       [&](Message& message) { return !messages_.test(message); });
  };
  while (!sends_.empty() && left() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kLook);
}

void HostBell::tell() {
  has_told_ = true;
  const HostBoard::Rung rung = board_.rung_by();
  if (rung.rank != rank_) return;
  outgoing() = packed(rung);
  for (const int64_t rank : elsewhere_)
    sends_.push_back(messages_.send(&outgoing(), sizeof(Ring), rank, 0));
}

bool HostBell::listen() {
  Ring ring;
  if (!messages_.receive_waiting(&ring, sizeof(Ring), 0)) return false;
  ErrorPlace place;
  if (ring.blamed >= 0) place.rank = ring.blamed;
  if (ring.step >= 0) place.step = ring.step;
  if (ring.operation[0] != 0) place.operation = ring.operation;
  return board_.ring(ring.rank, ring.reason, place);
}

}  // namespace strait::comm
