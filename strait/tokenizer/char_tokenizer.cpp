#include "strait/tokenizer/char_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/tokenizer/byte_tokenizer.h"
#include "strait/tokenizer/utf8.h"

namespace strait {
namespace {

constexpr int64_t kLastCodePoint = 0x10ffff;

bool is_scalar(int64_t code_point) {
  return code_point >= 0 && code_point <= kLastCodePoint &&
         !(code_point >= 0xd800 && code_point <= 0xdfff);
}

/// Calls visit(code point, byte offset) for every character.
template <class Visit>
void for_each_character(std::string_view text, Visit visit) {
  for (size_t offset = 0; offset < text.size();) {
    const size_t length = utf8_sequence_length(text, offset);
    if (length == 0)
      throw TextError(
          fmt::format("the char tokenizer needs UTF-8, but byte 0x{:02x} at byte offset ",
                      static_cast<uint8_t>(text[offset])),
          offset, " is not; use the byte or a bpe tokenizer for such text");
    visit(utf8_code_point(text, offset, length), offset);
    offset += length;
  }
}

std::string shown(char32_t code_point) {
  std::string text;
  append_utf8(text, code_point);
  const bool printable = code_point >= 0x20 && (code_point < 0x7f || code_point > 0x9f);
  return printable ? fmt::format("\"{}\" (U+{:04X})", text, static_cast<uint32_t>(code_point))
                   : fmt::format("U+{:04X}", static_cast<uint32_t>(code_point));
}

}  // namespace

CharTokenizer::CharTokenizer(std::vector<char32_t> characters)
    : characters_(std::move(characters)) {
  if (characters_.empty()) throw UserError("the char tokenizer needs at least one character");
  for (size_t i = 0; i < characters_.size(); ++i) {
    const char32_t character = characters_[i];
    if (!is_scalar(character) || (i > 0 && character <= characters_[i - 1]))
      throw UserError(fmt::format("characters[{}] = {} is not a code point above the one before", i,
                                  static_cast<uint32_t>(character)));
  }
  token_of_.assign(static_cast<size_t>(characters_.back()) + 1, -1);
  bytes_.resize(characters_.size());
  for (size_t i = 0; i < characters_.size(); ++i) {
    token_of_[characters_[i]] = static_cast<int32_t>(i);
    append_utf8(bytes_[i], characters_[i]);
  }
}

CharTokenizer CharTokenizer::from_text(std::string_view text) {
  std::vector<bool> seen(static_cast<size_t>(kLastCodePoint) + 1);
  std::vector<char32_t> characters;
  for_each_character(text, [&](char32_t character, size_t) {
    if (!seen[character]) characters.push_back(character);
    seen[character] = true;
  });
  std::sort(characters.begin(), characters.end());
  return CharTokenizer(std::move(characters));
}

CharTokenizer CharTokenizer::from_json(const Json& json) {
  std::vector<char32_t> characters;
  for (const Json& element : json.at("characters").as_array()) {
    if (!is_scalar(element.as_integer()))
      throw UserError(fmt::format("characters[{}] = {} is not a Unicode code point",
                                  characters.size(), element.as_integer()));
    characters.push_back(static_cast<char32_t>(element.as_integer()));
  }
  return CharTokenizer(std::move(characters));
}

std::vector<int32_t> CharTokenizer::encode(std::string_view text, int) const {
  std::vector<int32_t> tokens;
  tokens.reserve(text.size());
  for_each_character(text, [&](char32_t character, size_t offset) {
    const int32_t token = character < token_of_.size() ? token_of_[character] : -1;
    if (token < 0)
      throw TextError(
          fmt::format("the character {} at byte offset ", shown(character)), offset,
          fmt::format(" is not among the {} characters of the char tokenizer; a model trained with "
                      "those takes no others, one with the byte or a bpe tokenizer takes any text",
                      characters_.size()));
    tokens.push_back(token);
  });
  return tokens;
}

std::string_view CharTokenizer::token_bytes(int32_t token) const {
  check_token(token);
  return bytes_[static_cast<size_t>(token)];
}

std::string CharTokenizer::serialize() const {
  std::vector<int64_t> code_points(characters_.begin(), characters_.end());
  return Json::object(
             {{"format", kTokenizerFormat}, {"kind", "char"}, {"characters", Json(code_points)}})
             .dump() +
         "\n";
}

}  // namespace strait
