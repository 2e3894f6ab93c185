// sequence.head_ranks of a run.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>

#include "strait/config/options.h"

namespace strait {

/// As a number; nothing where it is "auto".
inline std::optional<int64_t> given_head_ranks(const SequenceOptions& options) {
  const std::string& text = options.head_ranks;
  int64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc())
    return std::nullopt;
  return number;
}

}  // namespace strait
