// What blocks that LibTorch runs consist of, to be timed: its convolutions, what passes through its
// activations, and its smallest operations.
#pragma once

#include <cstdint>
#include <memory>

#include "strait/base/dtype.h"

namespace strait::measure {

/// Which rate of a cluster a run tells (LibraryWork).
enum class LibraryPart : uint8_t { kConvolutions, kActivations, kCalls };

/// Forward and backward under autograd, on the calling thread. Not thread-safe.
class LibraryRun {
 public:
  /// In fp32, fp64 or bf16.
  LibraryRun(LibraryPart part, Dtype dtype);
  ~LibraryRun();
  LibraryRun(const LibraryRun&) = delete;
  LibraryRun& operator=(const LibraryRun&) = delete;

  void run();
  /// Of a run: floating-point operations, numbers or operations.
  double amount() const;

 private:
  struct Tensors;
  LibraryPart part_;
  std::unique_ptr<Tensors> tensors_;
};

}  // namespace strait::measure
