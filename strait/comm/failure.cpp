#include "strait/comm/failure.h"

namespace strait::comm {

void raise(const Failure& failure, const std::string& prefix) {
  const std::string message = prefix + failure.message;
  switch (failure.kind) {
    case Failure::Kind::kTimeout:
      throw Timeout(message, failure.place);
    case Failure::Kind::kPeerLost:
      throw PeerLost(message, failure.place);
    case Failure::Kind::kUser:
      throw UserError(message, failure.place);
    case Failure::Kind::kInternal:
      break;
  }
  throw InternalError(message, failure.place);
}

Failure current_failure() {
  try {
    throw;
  } catch (const Timeout& error) {
    return {Failure::Kind::kTimeout, error.what(), error.place()};
  } catch (const PeerLost& error) {
    return {Failure::Kind::kPeerLost, error.what(), error.place()};
  } catch (const UserError& error) {
    return {Failure::Kind::kUser, error.what(), error.place()};
  } catch (const Error& error) {
    return {Failure::Kind::kInternal, error.what(), error.place()};
  } catch (const std::exception& error) {
    return {Failure::Kind::kInternal, error.what(), {}};
  }
}

std::string describe(const Call& call, int64_t rank) {
  std::string text = operation_name(call.operation);
  if (!call.label.empty()) text += " \"" + call.label + "\"";
  if (call.step >= 0) text += " of step " + std::to_string(call.step);
  return text + " on rank " + std::to_string(rank);
}

ErrorPlace place_of(const Call& call, int64_t rank) {
  ErrorPlace place;
  if (rank >= 0) place.rank = rank;
  place.operation = call.label.empty() ? operation_name(call.operation) : call.label;
  if (call.step >= 0) place.step = call.step;
  return place;
}

bool Alarm::ring(int64_t rank, const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (rung_.load(std::memory_order_relaxed)) return false;
  rank_ = rank;
  reason_ = reason;
  rung_.store(true, std::memory_order_release);
  return true;
}

void Alarm::raise_for(const Call& call, int64_t own_rank) const {
  const std::string who = rank_ < 0 ? "" : "rank " + std::to_string(rank_) + " failed: ";
  throw PeerLost(describe(call, own_rank) + ": " + who + reason_, place_of(call, rank_));
}

}  // namespace strait::comm
