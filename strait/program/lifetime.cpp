#include "strait/program/lifetime.h"

#include <algorithm>

#include "strait/base/errors.h"

namespace strait::program {

namespace {

bool is_transient(const ValueArray& array) { return array.lifetime == Lifetime::kTransient; }

bool is_carry_out(const ValueArray& array) {
  return array.lifetime == Lifetime::kCarryOut || array.lifetime == Lifetime::kCarry;
}

constexpr int64_t kFirstRing = 64;

}  // namespace

bool may_outlive(const Program& program, const Op& op) {
  const auto array = [&](const Operand& operand) -> const ValueArray& {
    return program.arrays[operand.array];
  };
  const auto borrows = [&](const Operand& operand) { return is_transient(array(operand)); };
  return std::ranges::any_of(op.writes, [&](const Operand& o) { return is_carry_out(array(o)); }) &&
         std::ranges::none_of(op.writes, borrows) && std::ranges::none_of(op.reads, borrows);
}

SlotMap::SlotMap(const Program& program) {
  first_.push_back(0);
  for (size_t a = 0; a < program.arrays.size(); ++a) {
    const int64_t count = std::max<int64_t>(program.arrays[a].count, 0);
    first_.push_back(first_.back() + count);
    array_.insert(array_.end(), count, static_cast<int>(a));
  }
}

LifetimeTracker::LifetimeTracker(const Program& program)
    : program_(program),
      slots_(program),
      streams_(std::max<int64_t>(static_cast<int64_t>(program.streams.size()), 1)) {
  for (int64_t slot = 0; slot < slots_.size(); ++slot) {
    transient_.push_back(is_transient(program.arrays[slots_.array_of(slot)]));
  }
  mask_ = kFirstRing - 1;
  entries_.assign(kFirstRing * streams_, 0);
  begin();
}

void LifetimeTracker::begin(const std::vector<int64_t>& carried) {
  issued_ = 0;
  oldest_ = 0;
  known_.assign(streams_, -1);
  last_.assign(streams_, -1);
  last_plain_.assign(streams_, -1);
  needed_.assign(streams_, -1);
  writer_.assign(slots_.size(), -1);
  touched_.assign(slots_.size() * streams_, -1);
  state_.assign(slots_.size(), State::kAbsent);
  carried_.assign(slots_.size(), 0);
  for (const int64_t slot : carried) carried_[slot] = 1;
  pending_.clear();
  carries_.clear();
  learned_ = false;
}

int64_t LifetimeTracker::slot_of(const Operand& operand, const std::vector<int64_t>& loops) const {
  const int64_t slot = slots_.slot(operand.array, evaluate(operand.index, loops));
  ensure(slot >= 0, "an operand lies outside its array");
  return slot;
}

void LifetimeTracker::need(int64_t number) {
  if (number < 0 || known_ended(number)) return;
  int64_t& needed = needed_[entry(number)[0]];
  needed = std::max(needed, number);
}

void LifetimeTracker::need_touches(int64_t slot) {
  const int64_t* touched = &touched_[slot * streams_];
  for (int64_t s = 1; s < streams_; ++s) {
    if (touched[s] > known_[s]) needed_[s] = std::max(needed_[s], touched[s]);
  }
}

void LifetimeTracker::take_carry(int64_t slot, bool settles) {
  if (!carried_[slot]) return;
  if (std::find(plan_.carries.begin(), plan_.carries.end(), slot) == plan_.carries.end()) {
    plan_.carries.push_back(slot);
  }
  if (settles) carried_[slot] = 0;
}

/// Fills needed_ and plan_.carries: writers of what it reads, everything on what it overwrites or
/// awaits.
void LifetimeTracker::collect(const Op& op, const std::vector<int64_t>& loops) {
  const bool inlined = !is_communication(op.kind);
  std::fill(needed_.begin(), needed_.end(), -1);
  if (!is_free(op)) {
    for (const Operand& operand : op.reads) {
      const int64_t slot = slot_of(operand, loops);
      need(writer_[slot]);
      take_carry(slot, inlined);
    }
    for (const Operand& operand : op.writes) {
      const int64_t slot = slot_of(operand, loops);
      need_touches(slot);
      take_carry(slot, true);
    }
  }
  for (const Operand& operand : op.waits) {
    const int64_t slot = slots_.slot(operand.array, evaluate(operand.index, loops));
    if (slot < 0) continue;
    need_touches(slot);
    take_carry(slot, inlined);
  }
}

void LifetimeTracker::know(int64_t number) {
  const int64_t* clock = entry(number);
  for (int64_t s = 1; s < streams_; ++s) known_[s] = std::max(known_[s], clock[s]);
  learned_ = true;
}

void LifetimeTracker::wait_inline() {
  for (int64_t s = 1; s < streams_; ++s) {
    if (needed_[s] <= known_[s]) continue;
    plan_.wait_for.push_back(needed_[s]);
    know(needed_[s]);
  }
  while (oldest_ < issued_ && oldest_ <= known_[entry(oldest_)[0]]) ++oldest_;
}

void LifetimeTracker::reserve_entry() {
  if (issued_ - oldest_ <= mask_) return;
  const int64_t mask = 2 * mask_ + 1;
  std::vector<int64_t> entries((mask + 1) * streams_, 0);
  for (int64_t number = oldest_; number < issued_; ++number) {
    std::copy_n(entry(number), streams_, &entries[(number & mask) * streams_]);
  }
  entries_ = std::move(entries);
  mask_ = mask;
}

void LifetimeTracker::start_communication(const Op& op, const std::vector<int64_t>& loops) {
  ensure(op.stream > 0 && op.stream < streams_,
         "a communication op is not on a communication stream");
  reserve_entry();
  const int64_t number = issued_++;
  int64_t* clock = entry(number);
  std::copy(known_.begin(), known_.end(), clock);
  const auto follow = [&](int64_t earlier) {
    const int64_t* other = entry(earlier);
    for (int64_t s = 1; s < streams_; ++s) clock[s] = std::max(clock[s], other[s]);
  };
  const int64_t previous = last_[op.stream];
  if (previous > known_[op.stream]) {
    plan_.previous = previous;
    follow(previous);
  }
  for (int64_t s = 1; s < streams_; ++s) {
    if (s == op.stream || needed_[s] <= clock[s]) continue;
    plan_.after.push_back(needed_[s]);
    follow(needed_[s]);
  }
  clock[0] = op.stream;
  clock[op.stream] = number;
  last_[op.stream] = number;
  plan_.communication = number;
  note_carry(op, loops);
}

void LifetimeTracker::note_carry(const Op& op, const std::vector<int64_t>& loops) {
  if (!may_outlive(program_, op)) {
    last_plain_[op.stream] = plan_.communication;
    return;
  }
  for (const auto* operands : {&op.reads, &op.writes}) {
    for (const Operand& operand : *operands) {
      carries_.emplace_back(slot_of(operand, loops), plan_.communication);
    }
  }
}

bool LifetimeTracker::in_use(int64_t slot) const {
  const int64_t* touched = &touched_[slot * streams_];
  for (int64_t s = 1; s < streams_; ++s) {
    if (touched[s] > known_[s]) return true;
  }
  return false;
}

void LifetimeTracker::release_pending(std::vector<int64_t>& released) {
  learned_ = false;
  size_t kept = 0;
  for (const int64_t slot : pending_) {
    if (state_[slot] != State::kPending) continue;
    if (in_use(slot)) {
      pending_[kept++] = slot;
      continue;
    }
    state_[slot] = State::kAbsent;
    released.push_back(slot);
  }
  pending_.resize(kept);
}

void LifetimeTracker::free_values(const std::vector<Operand>& operands,
                                  const std::vector<int64_t>& loops) {
  for (const Operand& operand : operands) {
    const int64_t slot = slot_of(operand, loops);
    if (state_[slot] != State::kLive) continue;
    if (in_use(slot)) {
      state_[slot] = State::kPending;
      pending_.push_back(slot);
    } else {
      state_[slot] = State::kAbsent;
      plan_.release_after.push_back(slot);
    }
  }
}

void LifetimeTracker::allocate(const Op& op, const std::vector<int64_t>& loops) {
  for (const Operand& operand : op.writes) {
    const int64_t slot = slot_of(operand, loops);
    if (!transient_[slot]) continue;
    if (state_[slot] == State::kAbsent) plan_.allocate.push_back(slot);
    state_[slot] = State::kLive;  // one that is still pending keeps its memory
  }
}

void LifetimeTracker::touch(const Op& op, const std::vector<int64_t>& loops) {
  const int64_t number = plan_.communication;
  if (number >= 0) {
    for (const Operand& operand : op.reads) {
      touched_[slot_of(operand, loops) * streams_ + op.stream] = number;
    }
  }
  for (const Operand& operand : op.writes) {
    const int64_t slot = slot_of(operand, loops);
    writer_[slot] = number;
    if (number < 0) continue;
    // Whoever awaits this write awaits all earlier uses with it, because it was started after them.
    std::fill_n(&touched_[slot * streams_], streams_, -1);
    touched_[slot * streams_ + op.stream] = number;
  }
}

const StepPlan& LifetimeTracker::next(const Op& op, const std::vector<int64_t>& loops) {
  plan_.communication = plan_.previous = -1;
  plan_.wait_for.clear();
  plan_.after.clear();
  plan_.carries.clear();
  plan_.release_before.clear();
  plan_.allocate.clear();
  plan_.release_after.clear();
  collect(op, loops);
  if (is_communication(op.kind)) {
    start_communication(op, loops);
  } else {
    wait_inline();
    if (learned_) release_pending(plan_.release_before);
  }
  if (is_free(op)) {
    free_values(op.reads, loops);
    free_values(op.writes, loops);
  } else {
    allocate(op, loops);
    touch(op, loops);
  }
  return plan_;
}

const FinishPlan& LifetimeTracker::finish() {
  finish_.wait_for.clear();
  finish_.release.clear();
  finish_.outstanding.clear();
  for (int64_t s = 1; s < streams_; ++s) {
    if (last_plain_[s] <= known_[s]) continue;
    finish_.wait_for.push_back(last_plain_[s]);
    know(last_plain_[s]);
  }
  release_pending(finish_.release);
  for (const auto& carry : carries_) {
    if (!known_ended(carry.second)) finish_.outstanding.push_back(carry);
  }
  return finish_;
}

}  // namespace strait::program
