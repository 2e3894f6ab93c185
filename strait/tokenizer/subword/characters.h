// Unicode as tokenizers need it: kinds of characters, normal forms, letters in lower case. The
// tables are those of the installed utf8proc.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace strait::subword {

/// The character at `at` < text.size(), which moves behind it. A byte that begins no character
/// counts as U+FFFD of one byte.
char32_t next_character(std::string_view text, size_t& at);

void append_character(std::string& out, char32_t character);

/// Unicode's White_Space.
bool is_white_space(char32_t character);
/// Categories P*, and the signs of ASCII ("$+<=>^`|~").
bool is_punctuation(char32_t character);
/// Category Mn.
bool is_nonspacing_mark(char32_t character);
/// Categories M*.
bool is_mark(char32_t character);
/// Categories Cc, Cf and Co.
bool is_control(char32_t character);
/// Category N*.
bool is_number(char32_t character);

/// Appends what the character is in lower case: one character, or two for U+0130.
void append_lower_case(std::string& out, char32_t character);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// `text` must be UTF-8; UserError otherwise.
std::string normal_form(const std::string& text, NormalForm form);

/// Where the extended grapheme cluster that begins at `at` < text.size() ends.
size_t grapheme_end(std::string_view text, size_t at);

}  // namespace strait::subword
