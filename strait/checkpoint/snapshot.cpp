#include "strait/checkpoint/snapshot.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>

#include "strait/base/errors.h"
#include "strait/threads/cores.h"

namespace strait::checkpoint {
namespace {

// Copies start on cache lines.
constexpr int64_t kAlignmentBytes = 64;
constexpr double kMarginSeconds = 5;

int64_t view_bytes(const ShardView& view) {
  return view.range.elements() * dtype_bytes(view.range.dtype);
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
  if (!saved_.valid()) return;
  session_->cancel();
  saved_.wait();
}

void SnapshotWriter::use_buffer(std::span<std::byte> buffer) {
  ensure(!saved_.valid(), "use_buffer: a save is in flight");
  given_ = buffer;
}

void SnapshotWriter::start(int64_t step, const std::vector<ShardView>& shards,
                           std::optional<SaveDescription> description) {
  finish();
  const auto needed = static_cast<size_t>(snapshot_bytes(shards));
  if (needed > given_.size() && needed > own_.size()) own_.resize(needed);
  saved_ = std::async(
      std::launch::async,
      [session = session_, step, cores = cores_before_binding(),
       copies = copy_shards(shards, needed <= given_.size() ? given_ : std::span<std::byte>(own_)),
       described = std::move(description)]() mutable {
        run_on(cores);
        return session->save(step, copies, std::move(described));
      });
}

bool SnapshotWriter::busy() const {
  return saved_.valid() && saved_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

std::optional<std::string> SnapshotWriter::finish() {
  if (!saved_.valid()) return std::nullopt;
  // The session's own deadline begins when the file is written.
  const std::chrono::duration<double> limit(2 * session_->deadline_seconds() + kMarginSeconds);
  if (saved_.wait_for(limit) != std::future_status::ready)
    throw Timeout(fmt::format("a save is still being written after {} s: the disk does not answer",
                              limit.count()));
  return saved_.get();
}

}  // namespace strait::checkpoint
