#include "strait/memory/pool.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "strait/base/errors.h"

namespace strait::memory {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;

void* system_allocate(int64_t capacity) {
  const bool large = capacity >= 2 * kHugePage;
  const size_t alignment = static_cast<size_t>(large ? kHugePage : kAlignment);
  void* pointer = std::aligned_alloc(alignment, static_cast<size_t>(capacity));
  if (pointer == nullptr)
    throw InputOutputError(fmt::format("out of memory: the system refused {} bytes", capacity));
  if (large) ::madvise(pointer, static_cast<size_t>(capacity), MADV_HUGEPAGE);
  return pointer;
}

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Pool::~Pool() {
  for (auto& [capacity, buffers] : free_)
    for (void* buffer : buffers) std::free(buffer);
  for (auto& [buffer, sizes] : used_) std::free(buffer);
}

void* Pool::allocate(int64_t bytes) {
  if (bytes <= 0) return nullptr;
  void* pointer = nullptr;
  // The smallest kept buffer that fits and wastes at most half of itself.
  auto fit = free_.lower_bound(bytes);
  while (fit != free_.end() && fit->second.empty()) ++fit;
  int64_t capacity = round_up(bytes, bytes >= 2 * kHugePage ? kHugePage : kAlignment);
  if (fit != free_.end() && fit->first <= std::max(2 * bytes, capacity)) {
    pointer = fit->second.back();
    capacity = fit->first;
    fit->second.pop_back();
  } else {
    pointer = system_allocate(capacity);
    ++system_allocations_;
  }
  used_[pointer] = {bytes, capacity};
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  return pointer;
}

void Pool::release(void* pointer) {
  if (pointer == nullptr) return;
  const auto found = used_.find(pointer);
  ensure(found != used_.end(), "Pool::release: the buffer is not from this pool");
  live_ -= found->second.first;
  free_[found->second.second].push_back(pointer);
  used_.erase(found);
}

}  // namespace strait::memory
