// UTF-8 as the Unicode standard, table 3-7, defines it: no surrogates, no overlong forms, at most
// U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace strait {

/// Length in bytes of the valid sequence that starts at `offset` < text.size(), or 0 when there is
/// none.
size_t utf8_sequence_length(std::string_view text, size_t offset);

/// Offset of the first byte at or after `offset` that is not part of a valid sequence; text.size()
/// when all is valid. `offset` must be the start of a sequence. Cost: one pass, eight ASCII bytes
/// at a time.
size_t first_invalid_utf8(std::string_view text, size_t offset = 0);

/// The code point of the valid sequence of `length` bytes at `offset`.
char32_t utf8_code_point(std::string_view text, size_t offset, size_t length);

/// Appends a code point up to U+10FFFF that is no surrogate.
void append_utf8(std::string& out, char32_t code_point);

/// The last sequence start at or before `offset` <= text.size(), for valid text; text.size() for
/// itself.
size_t utf8_boundary_before(std::string_view text, size_t offset);

}  // namespace strait
