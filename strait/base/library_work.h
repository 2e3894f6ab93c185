// What an operation leaves to a library that has an allocator and operations of its own (LibTorch).
#pragma once

#include <cstdint>

namespace strait {

/// Of one execution, beside the buffers that it is handed and its floating-point operations.
struct LibraryWork {
  int64_t bytes = 0;        // of the library's allocator, at the peak
  double passed_bytes = 0;  // read and written by operations that are no products
  double activations = 0;   // numbers that pass through SiLU, a norm or a softmax, once each way
  double calls = 0;         // of its operations
};

}  // namespace strait
