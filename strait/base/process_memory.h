// Memory of this process as the system sees it, and refusing what it has not.
#pragma once

#include <cstdint>
#include <string>

namespace strait {

/// Most bytes that were resident at a time so far (getrusage); 0 where the system does not tell.
int64_t peak_resident_bytes();

/// Bytes of memory that this computer has.
int64_t physical_memory_bytes();
/// Most bytes of address space, and of a file, that this process may have (setrlimit); the largest
/// number where it has no limit.
int64_t address_space_limit();
int64_t file_size_limit();

/// Bytes that this process may use: the physical memory, or less where its control group or its
/// limit of address space says so.
int64_t usable_memory_bytes();

/// NothingFits, naming both numbers, when `what` needs more than `has_bytes`. `hint` says what
/// would fit.
void require_memory_bytes(const std::string& what, int64_t needs_bytes, int64_t has_bytes,
                          const std::string& hint);

}  // namespace strait
