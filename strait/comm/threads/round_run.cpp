#include "strait/comm/threads/round_run.h"

#include <algorithm>
#include <string>

#include "strait/collective/schedule.h"
#include "strait/comm/call_check.h"
#include "strait/comm/call_form.h"

namespace strait::comm {

namespace {

using collective::Place;
using collective::Transfer;

class RoundRun {
 public:
  RoundRun(Rounds& rounds, int64_t sequence, int64_t position,
           const std::shared_ptr<const Call>& call, Mover& mover)
      : rounds_(rounds),
        sequence_(sequence),
        me_(position),
        call_(call),
        mover_(mover),
        form_(
            form_of(*call, rounds.members(), rounds.hub().cluster, rounds.hub().options.algorithm)),
        round_(rounds.find(sequence)),
        deadline_(rounds.hub().clock.deadline_after(call->deadline_seconds)) {}

  SentBytes run() {
    try {
      arrive();
      agree();
      pull();
      finish();
    } catch (...) {
      const Failure failure = current_failure();
      withdraw(failure);
      raise(failure);
    }
    return leave();
  }

 private:
  void arrive() {
    const int64_t bytes =
        form_.whole_bytes * ((form_.staged ? 1 : 0) + (form_.needs_scratch ? 1 : 0));
    char* scratch = mover_.scratch(bytes, call_->source ? call_->source : call_->destination);
    char* partial_sums = scratch + (form_.staged ? form_.whole_bytes : 0);
    round_->offers[me_] = {call_, call_->source, form_.staged ? scratch : call_->destination,
                           partial_sums};
    round_->progress[me_].store(0);
    round_->arrived.fetch_add(1);
    rounds_.signal().notify();
    wait([&] { return round_->arrived.load() == rounds_.size(); },
         [&](int64_t member) { return round_->progress[member].load() == Round::kAbsent; });
  }

  void agree() const {
    for (int64_t member = 0; member < rounds_.size(); ++member) {
      if (member == me_) continue;
      const std::string both = mismatch(*call_, me_, *round_->offers[member].call, member);
      if (both.empty()) continue;
      throw UserError(describe(*call_, rank(me_)) + ": the members disagree: " + both +
                          " on rank " + std::to_string(rank(member)),
                      place_of(*call_, rank(member)));
    }
  }

  collective::Request request() const {
    if (call_->operation != Operation::kAllToAll) return form_.request;
    collective::Request request = form_.request;
    request.counts.clear();
    for (const Offer& offer : round_->offers)
      request.counts.insert(request.counts.end(), offer.call->counts.begin(),
                            offer.call->counts.end());
    return request;
  }

  void pull() {
    const std::vector<Transfer> transfers = collective::transfers_to(request(), me_);
    int64_t step = 0;
    for (size_t begin = 0, end = 0; begin < transfers.size(); begin = end) {
      const Transfer& first = transfers[begin];
      for (end = begin + 1; end < transfers.size() && transfers[end].add; ++end) {
      }
      if (first.step > step) announce(step = first.step);
      for (size_t at = begin; at < end; ++at) await_sender(transfers[at]);
      if (!round_->begin_reading()) raise(round_->failure, prefix());
      take(transfers.data() + begin, static_cast<int64_t>(end - begin));
      round_->end_reading();
    }
    if (form_.staged && call_->destination)
      mover_.sum(call_->dtype, {round_->offers[me_].destination}, call_->destination,
                 form_.whole_bytes / dtype_bytes(call_->dtype), true);
    mover_.settle(call_->destination);
  }

  /// All transfers of the steps before `step` are made.
  void announce(int64_t step) {
    round_->progress[me_].store(step);
    rounds_.signal().notify();
  }

  void await_sender(const Transfer& transfer) const {
    if (transfer.source == Place::kSource || transfer.from == me_) return;
    const auto behind = [&](int64_t member) {
      return member == transfer.from && round_->progress[member].load() < transfer.step;
    };
    wait([&] { return !behind(transfer.from); }, behind);
  }

  char* address(int64_t member, Place place, int64_t offset) const {
    const Offer& offer = round_->offers[member];
    const int64_t bytes = offset * dtype_bytes(call_->dtype);
    if (place == Place::kScratch) return static_cast<char*>(offer.scratch) + bytes;
    if (place == Place::kDestination) return static_cast<char*>(offer.destination) + bytes;
    return static_cast<char*>(const_cast<void*>(offer.source)) + bytes;
  }

  /// One sum, or one copy when count == 1.
  void take(const Transfer* transfers, int64_t count) {
    const Transfer& first = transfers[0];
    if (first.destination == Place::kDestination && !round_->offers[me_].destination)
      return;  // root, no copy
    char* destination = address(me_, first.destination, first.destination_offset);
    std::vector<const void*> sources(count);
    for (int64_t i = 0; i < count; ++i)
      sources[i] = address(transfers[i].from, transfers[i].source, transfers[i].source_offset);
    const bool accumulate =
        call_->accumulate && !form_.staged && first.destination == Place::kDestination;
    const int64_t moved =
        count == 1 && !accumulate
            ? mover_.copy(sources[0], destination, first.elements * dtype_bytes(call_->dtype))
            : mover_.sum(call_->dtype, sources, destination, first.elements, accumulate);
    for (int64_t i = 0; i < count; ++i) count_bytes(transfers[i].from, moved);
    mover_.settle(destination);  // the sources belong to others again when this member has read
  }

  /// What left `from` for this member.
  void count_bytes(int64_t from, int64_t bytes) {
    if (from == me_) return;
    const int64_t level = rounds_.level_between(from, me_);
    round_->sent[from * rounds_.num_levels() + level].fetch_add(bytes);
  }

  void finish() {
    round_->progress[me_].store(Round::kFinished);
    round_->finished.fetch_add(1);
    rounds_.signal().notify();
    wait([&] { return round_->finished.load() == rounds_.size(); },
         [&](int64_t member) { return round_->progress[member].load() != Round::kFinished; });
  }

  SentBytes leave() {
    SentBytes sent(rounds_.num_levels());
    for (size_t level = 0; level < sent.size(); ++level)
      sent[level] = round_->sent[me_ * sent.size() + level].load();
    rounds_.leave(sequence_, *round_);
    return sent;
  }

  /// Fails the round for all and waits until nobody reads: bounded by one copy, so without a
  /// deadline.
  void withdraw(const Failure& failure) {
    rounds_.fail(*round_, failure);
    while (round_->has_readers()) std::this_thread::yield();
    rounds_.leave(sequence_, *round_);
  }

  /// Waits for ready(); `is_late` tells for a member whether the wait is its fault.
  template <class Ready, class IsLate>
  void wait(const Ready& ready, const IsLate& is_late) const {
    const Alarm& alarm = rounds_.hub().alarm;
    rounds_.signal().wait([&] { return ready() || round_->failed.load() || alarm.rung(); },
                          rounds_.hub().clock, deadline_);
    if (ready()) return;
    if (round_->failed.load()) raise(round_->failure, prefix());
    if (alarm.rung()) alarm.raise_for(*call_, rank(me_));
    std::vector<int64_t> late;
    for (int64_t member = 0; member < rounds_.size(); ++member)
      if (member != me_ && is_late(member)) late.push_back(rank(member));
    const trace::Wait wait{rank(me_), rounds_.number(), -1, {}};
    raise(timeout(*call_, rank(me_), late, evidence(rounds_.hub().rows, call_->deadline_seconds),
                  wait));
  }

  std::string prefix() const { return describe(*call_, rank(me_)) + ", by way of: "; }
  int64_t rank(int64_t member) const { return rounds_.members()[member]; }

  Rounds& rounds_;
  const int64_t sequence_;
  const int64_t me_;
  const std::shared_ptr<const Call> call_;
  Mover& mover_;
  const CallForm form_;
  const std::shared_ptr<Round> round_;
  const SteadyTime deadline_;
};

}  // namespace

SentBytes run_round(Rounds& rounds, int64_t sequence, int64_t position,
                    const std::shared_ptr<const Call>& call, Mover& mover) {
  return RoundRun(rounds, sequence, position, call, mover).run();
}

void refuse_round(Rounds& rounds, int64_t sequence, const Failure& failure) {
  const std::shared_ptr<Round> round = rounds.find(sequence);
  rounds.fail(*round, failure);
  rounds.leave(sequence, *round);
}

}  // namespace strait::comm
