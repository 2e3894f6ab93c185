#include "strait/comm/failure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "strait/base/clock.h"

namespace strait::comm {

void raise(const Failure& failure, const std::string& prefix) {
  const std::string message = prefix + failure.message;
  switch (failure.kind) {
    case Failure::Kind::kTimeout:
      throw Timeout(message, failure.place);
    case Failure::Kind::kPeerLost:
      throw PeerLost(message, failure.place);
    case Failure::Kind::kNonFinite:
      throw NonFinite(message, failure.place);
    case Failure::Kind::kNothingFits:
      throw NothingFits(message, failure.place);
    case Failure::Kind::kUser:
      throw UserError(message, failure.place);
    case Failure::Kind::kInternal:
      break;
  }
  throw InternalError(message, failure.place);
}

namespace {

/// What those throw who hear of a cause.
Failure::Kind kind_of(Cause cause) {
  switch (cause) {
    case Cause::kNonFinite:
      return Failure::Kind::kNonFinite;
    case Cause::kNothingFits:
      return Failure::Kind::kNothingFits;
    case Cause::kLost:
      break;
  }
  return Failure::Kind::kPeerLost;
}

}  // namespace

Cause cause_of(const Failure& failure) {
  for (const Cause cause : {Cause::kNonFinite, Cause::kNothingFits})
    if (failure.kind == kind_of(cause)) return cause;
  return Cause::kLost;
}

Failure current_failure() {
  try {
    throw;
  } catch (const Timeout& error) {
    return {Failure::Kind::kTimeout, error.what(), error.place()};
  } catch (const PeerLost& error) {
    return {Failure::Kind::kPeerLost, error.what(), error.place()};
  } catch (const NonFinite& error) {
    return {Failure::Kind::kNonFinite, error.what(), error.place()};
  } catch (const NothingFits& error) {
    return {Failure::Kind::kNothingFits, error.what(), error.place()};
  } catch (const UserError& error) {
    return {Failure::Kind::kUser, error.what(), error.place()};
  } catch (const Error& error) {
    return {Failure::Kind::kInternal, error.what(), error.place()};
  } catch (const std::exception& error) {
    return {Failure::Kind::kInternal, error.what(), {}};
  } catch (...) {
    return {Failure::Kind::kInternal, "an exception of unknown type", {}};
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

namespace {

void blame(Failure& failure, const trace::Verdict& verdict) {
  failure.message += "; " + verdict.text;
  failure.place.rank = verdict.rank;
  if (!verdict.place.operation.empty()) failure.place.operation = verdict.place.operation;
  if (verdict.place.step >= 0) failure.place.step = verdict.place.step;
}

}  // namespace

Failure timeout(const Call& call, int64_t rank, const std::vector<int64_t>& late,
                const std::vector<trace::Standing>& ranks, const trace::Wait& wait) {
  std::string text = describe(call, rank) + ": after " +
                     fmt::format("{:g}", call.deadline_seconds) + " s still waiting for " +
                     (late.empty() ? std::string("an earlier operation of this rank")
                                   : fmt::format("rank {}", fmt::join(late, ", ")));
  Failure failure{Failure::Kind::kTimeout, text,
                  place_of(call, late.empty() ? rank : late.front())};
  const std::optional<trace::Verdict> verdict = trace::judge(ranks, {wait}, now_seconds());
  if (verdict) blame(failure, *verdict);
  return failure;
}

Failure lost(const Call& call, int64_t rank, int64_t peer,
             const std::vector<trace::Standing>& ranks, const trace::Wait& wait) {
  Failure failure{Failure::Kind::kPeerLost,
                  describe(call, rank) + fmt::format(": the process of rank {} has ended", peer),
                  place_of(call, peer)};
  const std::optional<trace::Verdict> verdict = trace::judge(ranks, {wait}, now_seconds());
  if (verdict && verdict->fault == trace::Fault::kMissing) blame(failure, *verdict);
  return failure;
}

bool Alarm::ring(int64_t rank, const std::string& reason, const ErrorPlace& place, Cause cause) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (rung_.load(std::memory_order_relaxed)) return false;
  rank_ = rank;
  reason_ = reason;
  place_ = place;
  cause_ = cause;
  rung_.store(true, std::memory_order_release);
  return true;
}

void Alarm::raise_for(const Call& call, int64_t own_rank) const {
  const int64_t blamed = place_.rank.value_or(rank_);
  const std::string who = rank_ < 0         ? ""
                          : blamed == rank_ ? fmt::format("rank {} failed: ", rank_)
                                            : fmt::format("rank {} gave up: ", rank_);
  ErrorPlace place = place_of(call, blamed);
  if (place_.operation) place.operation = place_.operation;
  if (place_.step) place.step = place_.step;
  raise({kind_of(cause_), describe(call, own_rank) + ": " + who + reason_, place});
}

}  // namespace strait::comm
