#include "strait/draft/step_options.h"

#include <charconv>

#include "strait/base/errors.h"

namespace strait::draft {

Recompute parse_recompute(const std::string& text) {
  if (text == "none") return {0};
  if (text == "block") return {1};
  int64_t every = 0;
  const std::string prefix = "every:";
  if (text.starts_with(prefix)) {
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data() + prefix.size(), end, every);
    if (code == std::errc() && stop == end && every >= 1) return {every};
  }
  ErrorPlace place;
  place.key = "train.recompute";
  throw UserError("train.recompute = \"" + text + "\" is not none, block or every:K with K >= 1",
                  place);
}

}  // namespace strait::draft
