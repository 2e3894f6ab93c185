#include "strait/memory/pool.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "strait/base/errors.h"
#include "strait/tensor/device.h"

namespace strait::memory {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

void* system_allocate(int64_t capacity, int64_t least_alignment) {
  const bool large = capacity >= 2 * kHugePage;
  const size_t alignment = static_cast<size_t>(large ? kHugePage : least_alignment);
  void* pointer = std::aligned_alloc(alignment, static_cast<size_t>(capacity));
  if (pointer == nullptr)
    throw NothingFits(fmt::format("out of memory: the system refused {} bytes", capacity));
  if (large) ::madvise(pointer, static_cast<size_t>(capacity), MADV_HUGEPAGE);
  return pointer;
}

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Reach Pool::source_of(Reach reach) const {
  const bool differs = reach == Reach::kHost ? device_ != nullptr : shared_ != nullptr;
  return differs ? reach : Reach::kOwn;
}

void* Pool::take(int64_t capacity, Reach source) {
  ++system_allocations_;
  if (source == Reach::kShared) return shared_->allocate(capacity);
  return device_ && source == Reach::kOwn ? device_->allocate(capacity)
                                          : system_allocate(capacity, alignment_);
}

void Pool::give_back(void* pointer, Reach source) {
  if (source == Reach::kShared)
    shared_->release(pointer);
  else if (device_ && source == Reach::kOwn)
    device_->release(pointer);
  else
    std::free(pointer);
}

Pool::~Pool() {
  for (auto& [buffer, piece] : pieces_) give_back(buffer, piece.source);
}

void* Pool::allocate(int64_t bytes, Reach reach) {
  if (bytes <= 0) return nullptr;
  const Reach source = source_of(reach);
  FreeLists& lists = free_list(source);
  void* pointer = nullptr;
  // The smallest kept buffer that fits and wastes at most half of itself.
  auto fit = lists.lower_bound(bytes);
  while (fit != lists.end() && fit->second.empty()) ++fit;
  int64_t capacity = round_up(bytes, bytes >= 2 * kHugePage ? kHugePage : alignment_);
  if (fit != lists.end() && fit->first <= std::max(2 * bytes, capacity)) {
    pointer = fit->second.back();
    capacity = fit->first;
    fit->second.pop_back();
  } else {
    pointer = take(capacity, source);
  }
  pieces_[pointer] = {bytes, capacity, source, true};
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  return pointer;
}

void Pool::release(void* pointer) {
  if (pointer == nullptr) return;
  const auto found = pieces_.find(pointer);
  ensure(found != pieces_.end() && found->second.used,
         "Pool::release: the buffer is not one that this pool has given");
  Piece& piece = found->second;
  live_ -= piece.requested;
  piece.used = false;
  free_list(piece.source)[piece.capacity].push_back(pointer);
}

}  // namespace strait::memory
