// Aligned buffers from a pool that counts what is alive. One pool per rank; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace strait::memory {

/// Buffers are 64-byte aligned; large ones lie on huge pages where the system grants them. Freed buffers
/// are kept for reuse by size. Counts are of requested bytes.
class Pool {
 public:
  Pool() = default;
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// A buffer of `bytes` bytes, contents undefined; nullptr for 0. Throws InputOutputError when the
  /// system has no memory left.
  void* allocate(int64_t bytes);
  void release(void* pointer);

  int64_t live_bytes() const { return live_; }
  int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_; }
  /// Calls to the system allocator so far: constant in the steady state.
  int64_t system_allocations() const { return system_allocations_; }

 private:
  std::map<int64_t, std::vector<void*>> free_;         // by capacity
  std::map<void*, std::pair<int64_t, int64_t>> used_;  // pointer -> (requested, capacity)
  int64_t live_ = 0, peak_ = 0, system_allocations_ = 0;
};

}  // namespace strait::memory
