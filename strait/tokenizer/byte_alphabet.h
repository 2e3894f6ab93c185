// GPT-2's way to write any byte as one visible character, so that tokens can stand in a JSON file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace strait {

/// The character of each byte: visible Latin-1 bytes stand for themselves, the other 68, in
/// ascending order, for U+0100, U+0101, ...
const std::array<char32_t, 256>& byte_characters();

/// The bytes in the order of their characters: GPT-2's tokens 0 to 255.
const std::array<uint8_t, 256>& bytes_in_token_order();

/// Bytes as characters, in UTF-8.
std::string bytes_to_visible(std::string_view bytes);

/// The inverse; nullopt when a character stands for no byte or the text is not UTF-8.
std::optional<std::string> visible_to_bytes(std::string_view visible);

}  // namespace strait
