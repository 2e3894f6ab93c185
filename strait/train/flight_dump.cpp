#include "strait/train/flight_dump.h"

#include <chrono>

#include "strait/base/clock.h"
#include "strait/comm/failure.h"

namespace strait::train {
namespace {

std::string kind_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.kind();
  } catch (...) {
    return "internal";
  }
}

trace::FlightReason reason_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (...) {
    const comm::Failure value = comm::current_failure();
    return {kind_of(failure), value.message, value.place};
  }
}

}  // namespace

FlightDump::FlightDump(std::string run_dir, std::string backend, int64_t ranks, bool fresh)
    : run_dir_(std::move(run_dir)),
      backend_(std::move(backend)),
      ranks_(static_cast<size_t>(ranks)) {
  if (fresh) trace::clear_flight(run_dir_);
}

trace::FlightRecord& FlightDump::attach(int64_t rank, const comm::WaitRow* row) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ranks_[rank].record = std::make_unique<trace::FlightRecord>();
  ranks_[rank].row = row;
  return *ranks_[rank].record;
}

void FlightDump::detach() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Rank& rank : ranks_) rank.row = nullptr;
}

void FlightDump::write_failed(int64_t rank, const std::exception_ptr& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!ranks_[rank].record) return;
  ranks_[rank].failed = true;
  write(rank, reason_of(failure), true);
}

void FlightDump::write_all(const std::string& kind, const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].record && !ranks_[rank].failed)
      write(static_cast<int64_t>(rank), {kind, message, {}}, kind == "stuck");
}

/// `kept`: as it stood when the first deadline passed.
void FlightDump::write(int64_t rank, const trace::FlightReason& reason, bool kept) noexcept {
  try {
    trace::FlightFile file;
    file.rank = rank;
    file.ranks = static_cast<int64_t>(ranks_.size());
    file.backend = backend_;
    file.reason = reason;
    file.wall_seconds =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    file.monotonic_seconds = now_seconds();
    file.standing.kind = trace::Standing::Kind::kAbsent;
    if (const comm::WaitRow* row = ranks_[rank].row)
      file.standing = kept ? row->kept_standing() : row->standing();
    file.entries = ranks_[rank].record->entries();
    trace::write_flight(run_dir_, file);
  } catch (const std::exception&) {  // the failure that is being recorded matters more
  }
}

}  // namespace strait::train
