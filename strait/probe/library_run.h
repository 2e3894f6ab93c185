// What blocks that LibTorch runs consist of, to be timed: its convolutions, what passes through its
// activations, and its smallest operations.
#pragma once

#include <cstdint>
#include <memory>

#include "strait/base/dtype.h"
#include "strait/base/provided.h"

namespace strait::measure {

/// Which rate of a cluster a run tells (LibraryWork).
enum class LibraryPart : uint8_t { kConvolutions, kActivations, kCalls };

/// Forward and backward under autograd, on the calling thread. Not thread-safe.
class LibraryRun {
 public:
  virtual ~LibraryRun() = default;
  virtual void run() = 0;
  /// Of a run: floating-point operations, numbers or operations.
  virtual double amount() const = 0;
};

/// In fp32, fp64 or bf16.
inline constinit Provided<std::unique_ptr<LibraryRun>(LibraryPart part, Dtype dtype)>
    make_library_run;

}  // namespace strait::measure
