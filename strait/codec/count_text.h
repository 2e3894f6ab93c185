// Numbers in the texts of codecs that programs are marked with.
#pragma once

#include <charconv>
#include <string>

#include "strait/base/errors.h"

namespace strait::codec {

/// The number in characters [begin, end) of a text. InternalError where there is none above 0.
inline int64_t parse_count(const std::string& text, size_t begin, size_t end) {
  int64_t count = 0;
  const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, count);
  if (error != std::errc() || stop != text.data() + end || count < 1)
    throw InternalError("codec: no number above 0 where one is due in " + text);
  return count;
}

}  // namespace strait::codec
