#include "strait/data/shards/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "strait/base/errors.h"

namespace strait {
namespace {

constexpr uint64_t kUnchecked = std::numeric_limits<uint64_t>::max();

/// Copies `count` stored tokens; false when one is not below `limit`. Negative ones are huge as
/// unsigned.
template <class T>
bool convert(const std::byte* data, int64_t count, uint64_t limit, int32_t* out) {
  bool good = true;
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = static_cast<int32_t>(value);
    good &= static_cast<uint64_t>(static_cast<int64_t>(value)) < limit;
  }
  return good;
}

bool convert(const TokenSegment& segment, int64_t first, int64_t count, uint64_t limit,
             int32_t* out) {
  const std::byte* data = segment.data + first * token_bytes(segment.type);
  switch (segment.type) {
    case TokenType::kUint8:
      return convert<uint8_t>(data, count, limit, out);
    case TokenType::kInt8:
      return convert<int8_t>(data, count, limit, out);
    case TokenType::kUint16:
      return convert<uint16_t>(data, count, limit, out);
    case TokenType::kInt16:
      return convert<int16_t>(data, count, limit, out);
    case TokenType::kInt32:
      if (limit == kUnchecked && count > 0) {
        std::memcpy(out, data, static_cast<size_t>(count) * sizeof(int32_t));
        return true;
      }
      return convert<int32_t>(data, count, limit, out);
    case TokenType::kUint32:
      return convert<uint32_t>(data, count, limit, out);
    case TokenType::kInt64:
      return convert<int64_t>(data, count, limit, out);
  }
  throw InternalError("a token type without a conversion");
}

/// The stored value, before it is cut to 32 bits.
int64_t stored_value(const TokenSegment& segment, int64_t position) {
  int64_t value = 0;
  const int64_t width = token_bytes(segment.type);
  std::memcpy(&value, segment.data + position * width, static_cast<size_t>(width));
  const bool is_signed = segment.type == TokenType::kInt8 || segment.type == TokenType::kInt16 ||
                         segment.type == TokenType::kInt32;
  const auto shift = static_cast<int>(64 - 8 * width);
  return is_signed ? static_cast<int64_t>(static_cast<uint64_t>(value) << shift) >> shift : value;
}

}  // namespace

int64_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kUint16:
    case TokenType::kInt16:
      return 2;
    case TokenType::kInt32:
    case TokenType::kUint32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  throw InternalError("a token type without a size");
}

Tokens::Tokens(std::vector<int32_t> tokens) {
  const auto owner = std::make_shared<const std::vector<int32_t>>(std::move(tokens));
  TokenSegment segment;
  segment.data = reinterpret_cast<const std::byte*>(owner->data());
  segment.count = static_cast<int64_t>(owner->size());
  segment.owner = owner;
  append(std::move(segment));
}

void Tokens::append(TokenSegment segment) {
  if (segment.count == 0) return;
  starts_.push_back(starts_.back() + segment.count);
  segments_.push_back(std::move(segment));
}

void Tokens::set_vocabulary(int64_t vocabulary, std::string tokenizer) {
  vocabulary_ = vocabulary;
  tokenizer_ = std::move(tokenizer);
}

void Tokens::read(int64_t first, std::span<int32_t> out) const {
  ensure(first >= 0 && first + static_cast<int64_t>(out.size()) <= size(),
         "Tokens: reading behind the end");
  const uint64_t limit = vocabulary_ > 0 ? static_cast<uint64_t>(vocabulary_) : kUnchecked;
  auto found = std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1;
  for (size_t done = 0; done < out.size(); ++found) {
    const TokenSegment& segment = segments_[found];
    const int64_t inside = first + static_cast<int64_t>(done) - starts_[found];
    const int64_t count = std::min(segment.count - inside, static_cast<int64_t>(out.size() - done));
    if (!convert(segment, inside, count, limit, out.data() + done)) {
      int64_t bad = inside;
      while (static_cast<uint64_t>(stored_value(segment, bad)) < limit) ++bad;
      ErrorPlace place;
      place.file = segment.file;
      place.key = "data.path";
      const int64_t width = token_bytes(segment.type);
      throw UserError(
          fmt::format(
              "{}: token {} at byte offset {} is outside the vocabulary of {} tokens of {}; "
              "name the tokenizer that these tokens were made with (data.tokenizer)",
              segment.file, stored_value(segment, bad), segment.file_offset + bad * width,
              vocabulary_, tokenizer_),
          place);
    }
    done += static_cast<size_t>(count);
  }
}

int32_t Tokens::operator[](int64_t position) const {
  int32_t token = 0;
  read(position, std::span<int32_t>(&token, 1));
  return token;
}

Tokens Tokens::part(int64_t first, int64_t count) const {
  ensure(first >= 0 && count >= 0 && first + count <= size(), "Tokens: a part behind the end");
  Tokens part;
  part.set_vocabulary(vocabulary_, tokenizer_);
  for (size_t i = 0; i < segments_.size(); ++i) {
    const int64_t begin = std::max(first, starts_[i]) - starts_[i];
    const int64_t end = std::min(first + count, starts_[i + 1]) - starts_[i];
    if (begin >= end) continue;
    TokenSegment segment = segments_[i];
    const int64_t skipped = begin * token_bytes(segment.type);
    segment.data += skipped;
    segment.file_offset += skipped;
    segment.count = end - begin;
    part.append(std::move(segment));
  }
  return part;
}

std::vector<int32_t> Tokens::to_vector() const {
  std::vector<int32_t> all(static_cast<size_t>(size()));
  read(0, all);
  return all;
}

void Tokens::check_samples(int64_t most) const {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int32_t> block(kBlock);
  for (size_t i = 0; i < segments_.size(); ++i) {
    const int64_t count = segments_[i].count;
    const int64_t blocks = (std::min(count, most) + kBlock - 1) / kBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t last = count - std::min(kBlock, count);
      const int64_t begin =
          count <= most ? b * kBlock : last / std::max<int64_t>(1, blocks - 1) * b;
      const int64_t length = std::min(kBlock, count - begin);
      read(starts_[i] + begin, std::span(block).first(static_cast<size_t>(length)));
    }
  }
}

}  // namespace strait
