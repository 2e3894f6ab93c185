#include "strait/draft/step_options.h"

#include <charconv>

#include "strait/base/errors.h"

namespace strait::draft {
namespace {

/// The number behind a prefix, at least 1; 0: the text has another form.
int64_t number_behind(const std::string& prefix, const std::string& text) {
  int64_t number = 0;
  if (!text.starts_with(prefix)) return 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data() + prefix.size(), end, number);
  return code == std::errc() && stop == end && number >= 1 ? number : 0;
}

[[noreturn]] void refuse(const char* key, const std::string& text, const char* forms) {
  ErrorPlace place;
  place.key = key;
  throw UserError(std::string(key) + " = \"" + text + "\" is not " + forms, place);
}

}  // namespace

Recompute parse_recompute(const std::string& text) {
  if (text == "none") return {0};
  if (text == "block") return {1};
  if (const int64_t every = number_behind("every:", text)) return {every};
  refuse("train.recompute", text, "none, block or every:K with K >= 1");
}

Tiles parse_tiles(const std::string& text) {
  using enum Tiles::Choice;
  if (text == "off") return {};
  if (text == "auto") return {kAuto};
  if (text == "on") return {kOn};
  if (const int64_t chunks = number_behind("on:", text)) return {kOn, chunks};
  refuse("tensor.tiles", text, "off, auto, on or on:N with N >= 1");
}

}  // namespace strait::draft
