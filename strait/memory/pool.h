// Aligned buffers from a pool that counts what is alive. One pool per rank; not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace strait::tensor {
class Device;
}

namespace strait::memory {

/// Memory that a pool takes pieces from instead of the system's.
class PageSource {
 public:
  virtual ~PageSource() = default;
  /// 64-byte aligned; InputOutputError when there is none left.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* pointer) = 0;
};

/// Who has to reach a buffer: this rank, the others too, because it is sent and received, or the
/// processor even where the pool is a device's.
enum class Reach : uint8_t { kOwn, kShared, kHost };

/// Buffers are aligned to 64 bytes or more; large ones lie on huge pages where the system grants
/// them. Freed buffers are kept for reuse by size, so that the steady state allocates nothing, not
/// even a list's node. Counts are of requested bytes.
class Pool {
 public:
  /// `shared`: where buffers of Reach::kShared come from; null = where the others do. It outlives
  /// the pool.
  explicit Pool(PageSource* shared = nullptr) : shared_(shared) {}
  /// Buffers of a device, which outlives the pool; null = plain memory.
  explicit Pool(tensor::Device* device, PageSource* shared = nullptr)
      : shared_(device ? nullptr : shared), device_(device) {}
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Buffers share no page, so that each can be guarded alone. Before the first one is allocated.
  void separate_pages() { alignment_ = kPage; }

  /// A buffer of `bytes` bytes, contents undefined; nullptr for 0. Throws InputOutputError when the
  /// system has no memory left.
  void* allocate(int64_t bytes, Reach reach = Reach::kOwn);
  void release(void* pointer);
  /// Memory that somebody else takes (or, below 0, gives back) for this rank: it counts as alive.
  void count(int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  /// Where the buffers are: null = plain memory.
  tensor::Device* device() const { return device_; }

  int64_t live_bytes() const { return live_; }
  int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_; }
  /// Calls to the system allocator so far: constant in the steady state.
  int64_t system_allocations() const { return system_allocations_; }

 private:
  struct Piece {
    int64_t requested = 0, capacity = 0;
    Reach source = Reach::kOwn;
    bool used = false;
  };
  using FreeLists = std::map<int64_t, std::vector<void*>>;  // by capacity
  /// kOwn where the reach makes no difference to this pool.
  Reach source_of(Reach reach) const;
  void* take(int64_t capacity, Reach source);
  void give_back(void* pointer, Reach source);
  FreeLists& free_list(Reach source) { return free_[static_cast<size_t>(source)]; }

  PageSource* shared_ = nullptr;
  tensor::Device* device_ = nullptr;
  static constexpr int64_t kPage = 4096, kCacheLine = 64;
#ifdef STRAIT_GUARD
  int64_t alignment_ = kPage;
#else
  int64_t alignment_ = kCacheLine;
#endif
  FreeLists free_[3];              // by source
  std::map<void*, Piece> pieces_;  // all there are
  int64_t live_ = 0, peak_ = 0, system_allocations_ = 0;
};

}  // namespace strait::memory
