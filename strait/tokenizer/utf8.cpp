#include "strait/tokenizer/utf8.h"

#include <cstring>

namespace strait {
namespace {

size_t length_by_first_byte(uint8_t first) {
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;
  if (first < 0xe0) return 2;
  if (first < 0xf0) return 3;
  return first < 0xf5 ? 4 : 0;
}

}  // namespace

size_t utf8_sequence_length(std::string_view text, size_t offset) {
  const auto byte = [&](size_t k) { return static_cast<uint8_t>(text[offset + k]); };
  const uint8_t first = byte(0);
  const size_t length = length_by_first_byte(first);
  if (length <= 1) return length;
  if (length > text.size() - offset) return 0;
  for (size_t k = 1; k < length; ++k)
    if ((byte(k) & 0xc0) != 0x80) return 0;
  const uint8_t second = byte(1);
  if (first == 0xe0 && second < 0xa0) return 0;  // overlong
  if (first == 0xed && second > 0x9f) return 0;  // surrogate
  if (first == 0xf0 && second < 0x90) return 0;  // overlong
  if (first == 0xf4 && second > 0x8f) return 0;  // above U+10FFFF
  return length;
}

size_t first_invalid_utf8(std::string_view text, size_t offset) {
  constexpr uint64_t kHighBits = 0x8080808080808080ULL;
  while (offset < text.size()) {
    uint64_t eight = 0;
    if (text.size() - offset >= sizeof eight) {
      std::memcpy(&eight, text.data() + offset, sizeof eight);
      if ((eight & kHighBits) == 0) {
        offset += sizeof eight;
        continue;
      }
    }
    const size_t length = utf8_sequence_length(text, offset);
    if (length == 0) return offset;
    offset += length;
  }
  return text.size();
}

char32_t utf8_code_point(std::string_view text, size_t offset, size_t length) {
  const auto byte = [&](size_t k) { return static_cast<uint8_t>(text[offset + k]); };
  constexpr uint8_t kFirstBits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  char32_t code_point = byte(0) & kFirstBits[length];
  for (size_t k = 1; k < length; ++k) code_point = (code_point << 6) | (byte(k) & 0x3f);
  return code_point;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto tail = [&](int shift) {
    out += static_cast<char>(0x80 | ((code_point >> shift) & 0x3f));
  };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xc0 | (code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xe0 | (code_point >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xf0 | (code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t utf8_boundary_before(std::string_view text, size_t offset) {
  if (offset >= text.size()) return text.size();
  while (offset > 0 && (static_cast<uint8_t>(text[offset]) & 0xc0) == 0x80) --offset;
  return offset;
}

}  // namespace strait
