// Memory for packed panels, kept by each thread that multiplies.
#pragma once

#include <cstdint>

namespace strait::kernel {

/// At least `bytes` bytes of the calling thread, 4096-byte aligned, contents undefined: the same
/// memory every time. It grows to the largest request and goes with the thread.
void* gemm_scratch(int64_t bytes);

}  // namespace strait::kernel
