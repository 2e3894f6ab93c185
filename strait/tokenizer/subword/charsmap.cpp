#include "strait/tokenizer/subword/charsmap.h"

#include <fmt/format.h>

#include <cstring>

#include "strait/base/errors.h"
#include "strait/tokenizer/subword/characters.h"
#include "strait/tokenizer/subword/normalizer.h"

namespace strait::subword {
namespace {

constexpr size_t kLongestCluster = 5;  // bytes

/// Six bits of a digit of base64, or -1.
int digit_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

std::string decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = digit_value(c);
    if (value < 0) throw UserError("normalizer.precompiled_charsmap is not base64");
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return bytes;
}

// The fields of a unit of Darts-clone's double array.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7fffffffU; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000ffU; }
uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); }

bool is_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) == 0x80; }

}  // namespace

Charsmap::Charsmap(std::string_view base64) {
  const std::string bytes = decode_base64(base64);
  uint32_t trie_bytes = 0;
  if (bytes.size() >= sizeof trie_bytes) std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - sizeof trie_bytes)
    throw UserError(
        fmt::format("normalizer.precompiled_charsmap is damaged: {} bytes, of which a "
                    "trie should take {}",
                    bytes.size(), trie_bytes));
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), bytes.data() + sizeof trie_bytes, trie_bytes);
  texts_ = bytes.substr(sizeof trie_bytes + trie_bytes);
}

bool Charsmap::replace(std::string_view part, std::string& out) const {
  size_t node = offset_of(units_[0]);
  for (const char c : part) {
    const auto byte = static_cast<uint8_t>(c);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || label_of(units_[node]) != byte) return false;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size()) return false;
    const size_t begin = value_of(units_[node]);
    if (begin > texts_.size() || (begin < texts_.size() && is_continuation(texts_[begin])))
      return false;
    out += texts_.substr(begin, texts_.find('\0', begin) - begin);
    return true;
  }
  return false;
}

std::string Charsmap::apply(std::string_view text) const {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    check_growth(text.size(), out.size());
    const size_t end = grapheme_end(text, at);
    if (end - at <= kLongestCluster && replace(text.substr(at, end - at), out)) {
      at = end;
      continue;
    }
    while (at < end) {
      const size_t begin = at;
      next_character(text, at);
      const std::string_view character = text.substr(begin, at - begin);
      if (!replace(character, out)) out += character;
    }
  }
  return out;
}

}  // namespace strait::subword
