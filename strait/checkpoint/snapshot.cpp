#include "strait/checkpoint/snapshot.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>

#include "strait/base/errors.h"

namespace strait::checkpoint {
namespace {

// Copies start on cache lines.
constexpr int64_t kAlignmentBytes = 64;

int64_t view_bytes(const ShardView& view) {
  return (view.range.end - view.range.begin) * dtype_bytes(view.range.dtype);
}

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

/// Copies the shards into `buffer`; the views of the copies.
std::vector<ShardView> copy_shards(const std::vector<ShardView>& shards,
                                   std::span<std::byte> buffer) {
  std::vector<ShardView> copies = shards;
  int64_t offset = 0;
  for (ShardView& view : copies) {
    const int64_t bytes = view_bytes(view);
    if (bytes == 0) continue;
    std::byte* copy = buffer.data() + offset;
    std::memcpy(copy, view.data, static_cast<size_t>(bytes));
    view.data = copy;
    offset += aligned(bytes);
  }
  return copies;
}

}  // namespace

int64_t snapshot_bytes(const std::vector<ShardView>& shards) {
  int64_t sum = 0;
  for (const ShardView& view : shards) sum += aligned(view_bytes(view));
  return sum;
}

SnapshotWriter::~SnapshotWriter() {
  if (written_.valid()) written_.wait();
}

void SnapshotWriter::use_buffer(std::span<std::byte> buffer) {
  ensure(!step_, "use_buffer: a save is in flight");
  given_ = buffer;
}

void SnapshotWriter::start(int64_t step, const std::vector<ShardView>& shards,
                           std::optional<SaveDescription> description) {
  finish();
  // After a failure this rank's thread may still be reading the copies.
  const std::chrono::duration<double> deadline(session_->deadline_seconds());
  if (written_.valid() && written_.wait_for(deadline) != std::future_status::ready)
    throw Timeout(
        fmt::format("save of step {}: rank {} still writes the save before it", step, rank_));
  const auto needed = static_cast<size_t>(snapshot_bytes(shards));
  if (needed > given_.size() && needed > own_.size()) own_.resize(needed);
  std::vector<ShardView> copies =
      copy_shards(shards, needed <= given_.size() ? given_ : std::span<std::byte>(own_));
  const std::string folder = session_->open(step, rank_);
  step_ = step;
  written_ = std::async(std::launch::async, [session = session_, rank = rank_, step, folder,
                                             copies = std::move(copies),
                                             description = std::move(description)]() mutable {
    try {
      // No folder: opening failed, which wait reports.
      session->add(step, rank,
                   folder.empty() ? RankRecord{} : write_rank_file(folder, rank, copies),
                   std::move(description));
    } catch (const std::exception& error) {
      session->fail(step, rank, error);
    }
  });
}

bool SnapshotWriter::busy() const {
  return written_.valid() &&
         written_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

std::optional<std::string> SnapshotWriter::finish() {
  if (!step_) return std::nullopt;
  const int64_t step = *step_;
  step_.reset();
  // This rank's own thread is covered too: it reports before it ends.
  std::string path = session_->wait(step, rank_);
  written_.get();
  return path;
}

}  // namespace strait::checkpoint
