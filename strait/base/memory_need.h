// Refusing what does not fit before it is allocated.
#pragma once

#include <cstdint>
#include <string>

namespace strait {

/// NothingFits, naming both numbers, when `what` needs more than `has_bytes`. `hint` says what
/// would fit.
void require_memory_bytes(const std::string& what, int64_t needs_bytes, int64_t has_bytes,
                          const std::string& hint);

}  // namespace strait
