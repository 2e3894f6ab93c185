// What LibTorch's allocator gives to one thread, counted with the memory of its rank.
#pragma once

#include <memory>

#include "strait/base/provided.h"
#include "strait/memory/pool.h"

namespace strait::memory {

/// For its life, on the thread that made it, tensors on the processor count as alive in `pool`,
/// also those of a backward pass; what is left of them at the end does no longer. Takes the place
/// of LibTorch's profiler meanwhile. Cost: a lock per allocation.
class LibraryMeter {
 public:
  virtual ~LibraryMeter() = default;
};
inline constinit Provided<std::unique_ptr<LibraryMeter>(Pool& pool)> meter_library;

}  // namespace strait::memory
