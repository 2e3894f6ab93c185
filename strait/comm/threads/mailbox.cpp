#include "strait/comm/threads/mailbox.h"

#include <string>

namespace strait::comm {

Mailbox::Channel& Mailbox::channel(int64_t from, int64_t to) {
  std::unique_ptr<Channel>& found = channels_[{from, to}];
  if (!found) found = std::make_unique<Channel>();
  return *found;
}

void Mailbox::post(int64_t from, int64_t to, const std::shared_ptr<Parcel>& parcel) {
  std::optional<Failure> gone;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Channel& way = channel(from, to);
    if (!way.given_up.empty()) {
      gone = way.given_up.front();
      way.given_up.pop_front();
    } else {
      way.parcels.push_back(parcel);
      way.waiting.fetch_add(1);
    }
  }
  if (gone) return parcel->complete(0, gone);
  rounds_.signal().notify();
}

bool Mailbox::withdraw(int64_t from, int64_t to, const std::shared_ptr<Parcel>& parcel,
                       const Failure& why) {
  std::function<void(int64_t, const std::optional<Failure>&)> complete;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    bool waits = false;
    for (const auto& other : channel(from, to).parcels) waits = waits || other == parcel;
    if (!waits || parcel->withdrawn) return false;
    parcel->withdrawn = why;  // stays in its place, so that the matching receive fails and no other
    complete.swap(parcel->complete);  // the mailbox must not keep the sender alive
  }
  complete(0, why);
  return true;
}

void Mailbox::post_refused(int64_t from, int64_t to, const Failure& why) {
  auto parcel = std::make_shared<Parcel>();
  parcel->complete = [](int64_t, const std::optional<Failure>&) {};
  parcel->withdrawn = why;
  post(from, to, parcel);
}

void Mailbox::refuse(int64_t from, int64_t to, const Failure& why) {
  std::shared_ptr<Parcel> parcel;
  std::optional<Failure> withdrawn;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Channel& way = channel(from, to);
    if (way.parcels.empty()) {
      way.given_up.push_back(why);
      return;
    }
    parcel = way.parcels.front();
    withdrawn = parcel->withdrawn;
    way.parcels.pop_front();
    way.waiting.fetch_sub(1);
  }
  if (!withdrawn) parcel->complete(0, why);
}

void Mailbox::receive(int64_t to, const Call& call, const Mover& mover) {
  const int64_t from = call.peer, own_rank = rounds_.members()[to],
                peer_rank = rounds_.members()[from];
  const Alarm& alarm = rounds_.hub().alarm;
  Channel* way = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    way = &channel(from, to);
  }
  WaitClock& clock = rounds_.hub().clock;
  rounds_.signal().wait([&] { return way->waiting.load() > 0 || alarm.rung(); }, clock,
                        clock.deadline_after(call.deadline_seconds));
  if (alarm.rung()) alarm.raise_for(call, own_rank);
  std::shared_ptr<Parcel> parcel;
  std::optional<Failure> withdrawn;
  std::optional<Failure> late;
  if (way->waiting.load() == 0)
    late = timeout(call, own_rank, {peer_rank}, evidence(rounds_.hub().rows, call.deadline_seconds),
                   {own_rank, rounds_.number(), -1, {}});
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (late && way->parcels.empty()) {
      way->given_up.push_back(*late);
    } else {
      parcel = way->parcels.front();
      withdrawn = parcel->withdrawn;
      way->parcels.pop_front();
      way->waiting.fetch_sub(1);
    }
  }
  if (!parcel) raise(*late);
  if (withdrawn) {
    ErrorPlace place = withdrawn->place;
    if (!place.rank) place = place_of(call, peer_rank);
    throw PeerLost(describe(call, own_rank) + ": rank " + std::to_string(peer_rank) +
                       " gave up its send: " + withdrawn->message,
                   place);
  }
  deliver(*parcel, to, call, mover);
}

void Mailbox::deliver(Parcel& parcel, int64_t to, const Call& call, const Mover& mover) {
  const Call& sent = *parcel.call;
  if (sent.dtype != call.dtype || sent.counts != call.counts) {
    const std::string text = describe(call, rounds_.members()[to]) + ": wants " +
                             std::to_string(call.counts[0]) + " " + dtype_name(call.dtype) +
                             ", but " + describe(sent, rounds_.members()[call.peer]) + " brings " +
                             std::to_string(sent.counts[0]) + " " + dtype_name(sent.dtype);
    parcel.complete(0, Failure{Failure::Kind::kUser, text, place_of(sent, rounds_.members()[to])});
    throw UserError(text, place_of(call, rounds_.members()[call.peer]));
  }
  const int64_t moved =
      call.accumulate
          ? mover.sum(call.dtype, {sent.source}, call.destination, call.counts[0], true)
          : mover.copy(sent.source, call.destination, call.counts[0] * dtype_bytes(call.dtype));
  mover.settle(call.destination);
  parcel.complete(moved, std::nullopt);
}

}  // namespace strait::comm
