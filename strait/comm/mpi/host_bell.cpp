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
constexpr int kAlarmTag = 0, kQuestionTag = 1, kAnswerTag = 2, kLastStepTag = 3;
constexpr double kLastWords = 0.5;  // seconds for an alarm to leave a process that ends

/// What travels. Zero-filled: no alarm.
struct Ring {
  int64_t rank = -1, blamed = -1, step = -1;
  Cause cause = Cause::kLost;
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
  ring.cause = rung.cause;
  put(ring.operation, rung.place.operation.value_or(""));
  put(ring.reason, rung.reason);
  return ring;
}

}  // namespace

HostBell::HostBell(Messages& messages, HostBoard& board, int64_t rank,
                   std::vector<int64_t> elsewhere, Actions actions)
    : messages_(messages),
      board_(board),
      rank_(rank),
      elsewhere_(std::move(elsewhere)),
      actions_(std::move(actions)),
      thread_([this] { work(); }) {}

HostBell::~HostBell() {
  stopping_.store(true);
  thread_.join();
  static std::deque<std::deque<Sent>> left;  // MPI may still read what was not taken in time
  if (!sends_.empty()) left.push_back(std::move(sends_));
}

void HostBell::work() {
  while (!stopping_.load()) {
    if (listen()) actions_.told();
    if (board_.rung() && !has_told_) tell();
    answer();
    hear();
    hear_last_step();
    if (board_.last_step().asked()) tell_last_step();
    sending();
    std::this_thread::sleep_for(kLook);
  }
  if (board_.rung() && !has_told_) tell();
  const SteadyTime end = deadline_after(kLastWords);
  while (sending() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kLook);
}

void HostBell::send(std::string text, int64_t to, int tag) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Sent& sent = sends_.emplace_back();  // stays where it is until it is taken from the front
  sent.text = std::move(text);
  sent.message = messages_.send(sent.text.data(), static_cast<int64_t>(sent.text.size()), to, tag);
}

/// Drives what is being sent; true while there is any.
bool HostBell::sending() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Sent& sent : sends_) messages_.test(sent.message);
  while (!sends_.empty() && sends_.front().message.done) sends_.pop_front();
  return !sends_.empty();
}

void HostBell::tell() {
  has_told_ = true;
  const HostBoard::Rung rung = board_.rung_by();
  if (rung.rank != rank_) return;
  const Ring ring = packed(rung);
  for (const int64_t rank : elsewhere_)
    send(std::string(reinterpret_cast<const char*>(&ring), sizeof(ring)), rank, kAlarmTag);
}

bool HostBell::listen() {
  Ring ring;
  if (!messages_.receive_waiting(&ring, sizeof(Ring), kAlarmTag)) return false;
  ErrorPlace place;
  if (ring.blamed >= 0) place.rank = ring.blamed;
  if (ring.step >= 0) place.step = ring.step;
  if (ring.operation[0] != 0) place.operation = ring.operation;
  return board_.ring(ring.rank, ring.reason, place, ring.cause);
}

void HostBell::answer() {
  int64_t from = 0;
  while (const auto text = messages_.receive_waiting_text(kQuestionTag, from)) {
    Question question;
    if (text->size() != sizeof(question)) continue;
    std::memcpy(&question, text->data(), sizeof(question));
    send(std::to_string(question.number) + " " + actions_.stand(question.deadline_seconds), from,
         kAnswerTag);
  }
}

void HostBell::hear() {
  int64_t from = 0;
  while (auto text = messages_.receive_waiting_text(kAnswerTag, from)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string wanted = std::to_string(asked_) + " ";
    if (!text->starts_with(wanted)) continue;  // too late
    answers_.push_back(text->substr(wanted.size()));
    heard_.notify_all();
  }
}

/// Once every rank has told what is begun on its host, all know the most.
void HostBell::tell_last_step() {
  int64_t most = board_.settle_last_step();
  if (!has_told_last_step_)
    for (const int64_t rank : elsewhere_) send(std::to_string(most), rank, kLastStepTag);
  has_told_last_step_ = true;
  if (steps_elsewhere_.size() < elsewhere_.size()) return;
  for (const auto& [rank, begun] : steps_elsewhere_) most = std::max(most, begun);
  board_.last_step().decide(most);
}

void HostBell::hear_last_step() {
  int64_t from = 0;
  while (const auto text = messages_.receive_waiting_text(kLastStepTag, from)) {
    steps_elsewhere_[from] = std::stoll(*text);
    board_.last_step().ask();
  }
}

void HostBell::ask(double deadline_seconds, double seconds,
                   const std::function<bool(const std::string& answer)>& take) {
  const std::lock_guard<std::mutex> alone(asking_);
  Question question{deadline_seconds, 0};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    answers_.clear();
    question.number = ++asked_;
  }
  for (const int64_t rank : elsewhere_)
    send(std::string(reinterpret_cast<const char*>(&question), sizeof(question)), rank,
         kQuestionTag);
  const SteadyTime end = deadline_after(seconds);
  while (true) {
    std::string answer;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (!heard_.wait_until(lock, end, [&] { return !answers_.empty(); })) return;
      answer = std::move(answers_.front());
      answers_.pop_front();
    }
    if (!take(answer)) return;
  }
}

}  // namespace strait::comm
