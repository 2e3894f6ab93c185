#include "strait/tokenizer/subword/normalizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "strait/base/errors.h"
#include "strait/tokenizer/subword/characters.h"
#include "strait/tokenizer/subword/charsmap.h"
#include "strait/tokenizer/subword/json_part.h"

namespace strait::subword {
namespace {

constexpr const char* kSupported =
    "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, "
    "Precompiled, BertNormalizer, or none";
constexpr std::string_view kRunsOfSpaces = " {2,}";

/// `text` with each character as `append(out, character)` writes it.
template <class Append>
std::string each_character(std::string_view text, const Append& append) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) append(out, next_character(text, at));
  return out;
}

std::string lower_case(std::string text) { return each_character(text, append_lower_case); }

template <bool (*kIs)(char32_t)>
std::string without(std::string text) {
  return each_character(text, [](std::string& out, char32_t character) {
    if (!kIs(character)) append_character(out, character);
  });
}

/// What BERT's normalizer keeps, with every white space as ' '.
std::string clean(std::string text) {
  return each_character(text, [](std::string& out, char32_t c) {
    const bool line = c == '\t' || c == '\n' || c == '\r';
    if (line || (is_white_space(c) && !is_control(c))) {
      out += ' ';
    } else if (c != 0 && c != 0xfffd && !is_control(c)) {
      append_character(out, c);
    }
  });
}

struct Range {
  char32_t first, last;
};
/// Chinese characters as BERT's normalizer knows them; U+2B920 is U+2B820 in Unicode.
constexpr std::array kChinese = {Range{0x3400, 0x4dbf},   Range{0x4e00, 0x9fff},
                                 Range{0xf900, 0xfaff},   Range{0x20000, 0x2a6df},
                                 Range{0x2a700, 0x2b81f}, Range{0x2b920, 0x2ceaf},
                                 Range{0x2f800, 0x2fa1f}};

std::string with_spaces_around_chinese(std::string text) {
  return each_character(text, [](std::string& out, char32_t c) {
    const bool chinese = std::any_of(kChinese.begin(), kChinese.end(), [&](const Range& range) {
      return range.first <= c && c <= range.last;
    });
    if (chinese) out += ' ';
    append_character(out, c);
    if (chinese) out += ' ';
  });
}

std::string bert_without_accents(std::string text) {
  return without<is_nonspacing_mark>(normal_form(text, NormalForm::kNfd));
}

std::string strip(std::string text, bool left, bool right) {
  size_t begin = 0, end = 0;
  bool begun = !left;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const bool white = is_white_space(next_character(text, at));
    if (!white && !begun) begin = start;
    begun |= !white;
    if (!white) end = at;
  }
  if (!begun) return "";
  if (!right) end = text.size();
  return text.substr(begin, std::max(begin, end) - begin);
}

std::string without_runs_of_spaces(std::string_view text, std::string_view content) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    out += end - at >= 2 ? content : text.substr(at, end - at);
    check_growth(text.size(), out.size());
    const size_t next = std::min(text.find(' ', end), text.size());
    out += text.substr(end, next - end);
    at = next;
  }
  return out;
}

std::function<std::string(std::string)> replace_step(const Json& part, const std::string& where) {
  const Json& pattern = part.at("pattern");
  const std::string content = part.at("content").as_string();
  if (const Json* regex = pattern.find("Regex"); regex != nullptr) {
    if (regex->as_string() != kRunsOfSpaces)
      unsupported(where + ".pattern.Regex", regex->as_string(), "\" {2,}\", or a String");
    return [content](std::string text) { return without_runs_of_spaces(text, content); };
  }
  const std::string from = pattern.at("String").as_string();
  if (from.empty()) throw UserError(where + ".pattern.String is empty");
  return [from, content](std::string text) { return replaced(text, from, content); };
}

std::function<std::string(std::string)> bert_step(const Json& part) {
  const bool cleaned = flag_or(part, "clean_text", true);
  const bool chinese = flag_or(part, "handle_chinese_chars", true);
  const bool lower = flag_or(part, "lowercase", true);
  const bool accents = flag_or(part, "strip_accents", lower);
  return [=](std::string text) {
    if (cleaned) text = clean(std::move(text));
    if (chinese) text = with_spaces_around_chinese(std::move(text));
    if (accents) text = bert_without_accents(std::move(text));
    if (lower) text = lower_case(std::move(text));
    return text;
  };
}

std::function<std::string(std::string)> form_step(NormalForm form) {
  return [form](std::string text) { return normal_form(text, form); };
}

}  // namespace

void check_growth(size_t original, size_t bytes) {
  constexpr size_t kMostTimes = 16, kMostMore = 1024;
  if (bytes / kMostTimes > original && bytes > kMostTimes * original + kMostMore)
    throw UserError(
        fmt::format("the steps of the tokenizer make at least {} bytes of {} bytes of text; the "
                    "most is {} times as many and {}",
                    bytes, original, kMostTimes, kMostMore));
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(from, at), text.size());
    out += text.substr(at, found - at);
    if (found < text.size()) out += to;
    check_growth(text.size(), out.size());
    at = found + from.size();
  }
  return out;
}

Normalizer::Normalizer(const Json& json) { add(json, "normalizer"); }

void Normalizer::add(const Json& part, const std::string& where) {
  if (type_of(part) != "Sequence") {
    steps_.push_back(step_of(part, where));
    return;
  }
  const Json::Array& parts = part.at("normalizers").as_array();
  for (size_t i = 0; i < parts.size(); ++i)
    add(parts[i], fmt::format("{}.normalizers[{}]", where, i));
}

Normalizer::Step Normalizer::step_of(const Json& part, const std::string& where) {
  static const std::map<std::string, NormalForm> kForms = {{"NFC", NormalForm::kNfc},
                                                           {"NFD", NormalForm::kNfd},
                                                           {"NFKC", NormalForm::kNfkc},
                                                           {"NFKD", NormalForm::kNfkd}};
  const std::string type = type_of(part);
  if (const auto form = kForms.find(type); form != kForms.end()) return form_step(form->second);
  if (type == "Lowercase") return lower_case;
  if (type == "StripAccents") return without<is_mark>;
  if (type == "Replace") return replace_step(part, where);
  if (type == "BertNormalizer") return bert_step(part);
  if (type == "Prepend") {
    const std::string prefix = part.at("prepend").as_string();
    return [prefix](std::string text) { return text.empty() ? text : prefix + text; };
  }
  if (type == "Strip") {
    const bool left = flag_or(part, "strip_left", true), right = flag_or(part, "strip_right", true);
    return [=](std::string text) { return strip(std::move(text), left, right); };
  }
  if (type == "Precompiled") {
    const auto map = std::make_shared<const Charsmap>(part.at("precompiled_charsmap").as_string());
    return [map](std::string text) { return map->apply(text); };
  }
  unsupported(where, type, kSupported);
}

std::string Normalizer::apply(std::string text) const {
  const size_t original = text.size();
  for (const Step& step : steps_) {
    text = step(std::move(text));
    check_growth(original, text.size());
  }
  return text;
}

}  // namespace strait::subword
