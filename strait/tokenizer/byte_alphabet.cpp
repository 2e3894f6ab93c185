#include "strait/tokenizer/byte_alphabet.h"

#include <algorithm>

#include "strait/tokenizer/utf8.h"

namespace strait {
namespace {

bool is_visible(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

std::array<char32_t, 256> make_characters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    characters[byte] = is_visible(byte) ? static_cast<char32_t>(byte) : next++;
  return characters;
}

std::array<uint8_t, 256> make_order() {
  std::array<uint8_t, 256> order{};
  for (int byte = 0; byte < 256; ++byte) order[byte] = static_cast<uint8_t>(byte);
  const auto& characters = byte_characters();
  std::sort(order.begin(), order.end(),
            [&](uint8_t a, uint8_t b) { return characters[a] < characters[b]; });
  return order;
}

}  // namespace

const std::array<char32_t, 256>& byte_characters() {
  static const std::array<char32_t, 256> characters = make_characters();
  return characters;
}

const std::array<uint8_t, 256>& bytes_in_token_order() {
  static const std::array<uint8_t, 256> order = make_order();
  return order;
}

std::string bytes_to_visible(std::string_view bytes) {
  std::string visible;
  for (const char c : bytes) append_utf8(visible, byte_characters()[static_cast<uint8_t>(c)]);
  return visible;
}

std::optional<std::string> visible_to_bytes(std::string_view visible) {
  const auto& order = bytes_in_token_order();
  std::string bytes;
  for (size_t offset = 0; offset < visible.size();) {
    const size_t length = utf8_sequence_length(visible, offset);
    if (length == 0) return std::nullopt;
    const char32_t character = utf8_code_point(visible, offset, length);
    const auto found = std::lower_bound(
        order.begin(), order.end(), character,
        [](uint8_t byte, char32_t wanted) { return byte_characters()[byte] < wanted; });
    if (found == order.end() || byte_characters()[*found] != character) return std::nullopt;
    bytes += static_cast<char>(*found);
    offset += length;
  }
  return bytes;
}

}  // namespace strait
