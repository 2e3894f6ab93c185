// Memory of this process as the system sees it.
#pragma once

#include <cstdint>

namespace strait {

/// Most bytes that were resident at a time so far (getrusage); 0 where the system does not tell.
int64_t peak_resident_bytes();

/// Bytes that this process may use: the physical memory, or less where its control group or its
/// limit of address space says so.
int64_t usable_memory_bytes();

}  // namespace strait
