#include "strait/tokenizer/subword/characters.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <array>
#include <cctype>
#include <cstdlib>
#include <memory>

#include "strait/base/errors.h"

namespace strait::subword {
namespace {

constexpr char32_t kReplacement = 0xfffd;
constexpr char32_t kCapitalIWithDot = 0x130;

utf8proc_category_t category(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

bool between(char32_t character, utf8proc_category_t first, utf8proc_category_t last) {
  const auto kind = category(character);
  return first <= kind && kind <= last;
}

utf8proc_option_t options_of(NormalForm form) {
  constexpr int kDecomposed = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
  constexpr int kComposed = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
  switch (form) {
    case NormalForm::kNfc:
      return static_cast<utf8proc_option_t>(kComposed);
    case NormalForm::kNfd:
      return static_cast<utf8proc_option_t>(kDecomposed);
    case NormalForm::kNfkc:
      return static_cast<utf8proc_option_t>(kComposed | UTF8PROC_COMPAT);
    case NormalForm::kNfkd:
      return static_cast<utf8proc_option_t>(kDecomposed | UTF8PROC_COMPAT);
  }
  throw InternalError("a normal form without options");
}

}  // namespace

char32_t next_character(std::string_view text, size_t& at) {
  utf8proc_int32_t character = 0;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                       static_cast<utf8proc_ssize_t>(text.size() - at), &character);
  at += length > 0 ? static_cast<size_t>(length) : 1;
  return length > 0 ? static_cast<char32_t>(character) : kReplacement;
}

void append_character(std::string& out, char32_t character) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes.data());
  out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(length));
}

bool is_white_space(char32_t character) {
  if (character < 0x80) return character == ' ' || (character >= '\t' && character <= '\r');
  return character == 0x85 || between(character, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP);
}

bool is_punctuation(char32_t character) {
  if (character < 0x80)
    return character > ' ' && character != 0x7f && !std::isalnum(static_cast<int>(character));
  return between(character, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool is_nonspacing_mark(char32_t character) { return category(character) == UTF8PROC_CATEGORY_MN; }

bool is_mark(char32_t character) {
  return between(character, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME);
}

bool is_control(char32_t character) {
  const auto kind = category(character);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_CO;
}

bool is_number(char32_t character) {
  return between(character, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

void append_lower_case(std::string& out, char32_t character) {
  if (character == kCapitalIWithDot) {
    out += "i\u0307";
    return;
  }
  const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(character));
  append_character(out, static_cast<char32_t>(lower));
}

std::string normal_form(const std::string& text, NormalForm form) {
  utf8proc_uint8_t* made = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &made, options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  if (length < 0)
    throw UserError(fmt::format("text of {} bytes has no normal form: {}", text.size(),
                                utf8proc_errmsg(length)));
  return {reinterpret_cast<const char*>(made), static_cast<size_t>(length)};
}

size_t grapheme_end(std::string_view text, size_t at) {
  utf8proc_int32_t state = 0;
  auto before = static_cast<utf8proc_int32_t>(next_character(text, at));
  while (at < text.size()) {
    size_t behind = at;
    const auto character = static_cast<utf8proc_int32_t>(next_character(text, behind));
    if (utf8proc_grapheme_break_stateful(before, character, &state)) break;
    before = character;
    at = behind;
  }
  return at;
}

}  // namespace strait::subword
