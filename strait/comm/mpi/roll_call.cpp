#include "strait/comm/mpi/roll_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "strait/base/errors.h"
#include "strait/base/wait_clock.h"

namespace strait::comm {
namespace {

constexpr int kLengthTag = 1, kTextTag = 2;

}  // namespace

struct RollCall::Round {
  struct Peer {
    int64_t length = -1;
    Message length_message;
    std::optional<Message> text_message;
    bool has_told = false;
  };
  std::string text;
  int64_t length = 0;
  std::vector<std::string> texts;
  std::vector<Peer> peers;
  std::vector<Message> sends;
};

RollCall::RollCall(Messages& messages, int64_t rank, int64_t size,
                   std::function<bool(int64_t)> has_ended)
    : messages_(messages), rank_(rank), size_(size), has_ended_(std::move(has_ended)) {}

RollCall::~RollCall() = default;

/// False when there is nothing left to wait for.
bool RollCall::drive(Round& round) {
  bool left = false;
  for (Message& send : round.sends) left |= !messages_.test(send);
  for (int64_t from = 0; from < size_; ++from) {
    Round::Peer& peer = round.peers[from];
    if (peer.has_told) continue;
    if (!peer.text_message && messages_.test(peer.length_message)) {
      round.texts[from].resize(static_cast<size_t>(peer.length));
      peer.text_message = messages_.receive(round.texts[from].data(), peer.length, from, kTextTag);
    }
    peer.has_told = peer.text_message && messages_.test(*peer.text_message);
    left |= !peer.has_told;
  }
  return left;
}

void RollCall::post(Round& round, const std::string& text) {
  round.text = text;
  round.length = static_cast<int64_t>(text.size());
  round.texts.resize(static_cast<size_t>(size_));
  round.texts[rank_] = text;
  round.peers.resize(static_cast<size_t>(size_));
  round.peers[rank_].has_told = true;
  for (int64_t other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    Round::Peer& peer = round.peers[other];
    peer.length_message = messages_.receive(&peer.length, sizeof(peer.length), other, kLengthTag);
    round.sends.push_back(messages_.send(&round.length, sizeof(round.length), other, kLengthTag));
    round.sends.push_back(messages_.send(round.text.data(), round.length, other, kTextTag));
  }
}

/// The first rank that has not told and for which `condition` holds.
std::optional<int64_t> RollCall::first_silent(const Round& round,
                                              const std::function<bool(int64_t)>& condition) const {
  for (int64_t rank = 0; rank < size_; ++rank)
    if (!round.peers[rank].has_told && condition(rank)) return rank;
  return std::nullopt;
}

std::vector<std::string> RollCall::meet(const std::string& text, const std::string& purpose,
                                        double deadline_seconds) {
  rounds_.push_back(std::make_unique<Round>());
  Round& round = *rounds_.back();
  post(round, text);
  constexpr double kLook = 50e-3;  // between looks at processes
  constexpr std::chrono::microseconds kShortest(50), kLongest(2000);
  WaitClock clock;
  const SteadyTime deadline = clock.deadline_after(deadline_seconds);
  SteadyTime next_look = deadline_after(kLook);
  ErrorPlace place;
  place.operation = purpose;
  auto sleep = kShortest;
  for (; drive(round); sleep = std::min(2 * sleep, kLongest)) {
    std::this_thread::sleep_for(sleep);
    if (std::chrono::steady_clock::now() < next_look) continue;
    next_look = deadline_after(kLook);
    place.rank = first_silent(round, has_ended_);
    if (place.rank) drive(round);  // what it told before it ended
    if (place.rank && !round.peers[*place.rank].has_told)
      throw PeerLost(
          fmt::format("the process of rank {} has ended, and the others cannot {} without it",
                      *place.rank, purpose),
          place);
    if (clock.now() < deadline) continue;
    place.rank = first_silent(round, [](int64_t) { return true; });
    if (!place.rank) return round.texts;  // what this one sent may be taken later
    throw Timeout(fmt::format("rank {} has not come to {} after {:g} s", *place.rank, purpose,
                              deadline_seconds),
                  place);
  }
  std::vector<std::string> texts = std::move(round.texts);
  rounds_.pop_back();
  return texts;
}

}  // namespace strait::comm
