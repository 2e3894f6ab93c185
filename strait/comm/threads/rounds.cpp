#include "strait/comm/threads/rounds.h"

namespace strait::comm {

Round::Round(int64_t members, int64_t num_levels)
    : offers(members),
      progress(std::make_unique<std::atomic<int64_t>[]>(members)),
      sent(std::make_unique<std::atomic<int64_t>[]>(members * num_levels)) {
  for (int64_t member = 0; member < members; ++member) progress[member].store(kAbsent);
}

bool Round::begin_reading() {
  // Sequentially consistent on both sides: a failing member stores `failed` and then looks for
  // readers.
  readers_.fetch_add(1);
  if (!failed.load()) return true;
  end_reading();
  return false;
}

Rounds::Rounds(std::shared_ptr<Hub> hub, std::vector<int64_t> members, uint64_t number)
    : hub_(std::move(hub)),
      members_(std::move(members)),
      number_(number),
      signal_(hub_->make_signal(hub_->spin_seconds)) {
  levels_.assign(size() * size(), 0);
  for (int64_t from = 0; from < size(); ++from)
    for (int64_t to = 0; to < size(); ++to)
      if (from != to)
        levels_[from * size() + to] = hub_->cluster.level_between(members_[from], members_[to]);
}

std::shared_ptr<Round> Rounds::find(int64_t sequence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Round>& round = rounds_[sequence];
  if (!round) round = std::make_shared<Round>(size(), num_levels());
  return round;
}

void Rounds::fail(Round& round, const Failure& failure) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (round.failed.load()) return;
    round.failure = failure;
    round.failed.store(true);
  }
  signal_->notify();
}

void Rounds::leave(int64_t sequence, Round& round) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (++round.left == size()) rounds_.erase(sequence);
}

}  // namespace strait::comm
