// Memory for packed panels, kept by each thread that multiplies.
#pragma once

#include <cstdint>

namespace strait::kernel {

/// Whose panels: attention multiplies while it keeps its own.
enum class ScratchUse : uint8_t { kProducts, kAttention };

/// At least `bytes` bytes of the calling thread, 4096-byte aligned, contents undefined: the same
/// memory every time. It grows to the largest request and goes with the thread.
void* thread_scratch(ScratchUse use, int64_t bytes);

}  // namespace strait::kernel
