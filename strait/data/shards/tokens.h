// Tokens where they lie: in memory, or in mapped files of any integer type, one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace strait {

/// How a token is stored, little-endian.
enum class TokenType { kUint8, kInt8, kUint16, kInt16, kInt32, kUint32, kInt64 };

/// Bytes of one token.
int64_t token_bytes(TokenType type);

/// A run of tokens in one place.
struct TokenSegment {
  std::shared_ptr<const void> owner;  // keeps `data` alive
  const std::byte* data = nullptr;    // aligned to no more than a byte
  TokenType type = TokenType::kInt32;
  int64_t count = 0;
  std::string file;         // "" = memory
  int64_t file_offset = 0;  // bytes of the file before `data`
};

/// Immutable but for append and set_vocabulary; reading is thread-safe. Copies share the tokens.
class Tokens {
 public:
  Tokens() = default;
  Tokens(std::vector<int32_t> tokens);

  /// Adds tokens behind the others. A segment without tokens changes nothing.
  void append(TokenSegment segment);
  /// From now on reading checks that tokens are 0 .. vocabulary - 1, which nobody did when files
  /// were opened. `tokenizer` names the vocabulary in messages.
  void set_vocabulary(int64_t vocabulary, std::string tokenizer);

  int64_t size() const { return starts_.back(); }
  bool empty() const { return size() == 0; }
  /// Writes the tokens first .. first + out.size() - 1, which must exist. UserError (key data.path)
  /// naming the file, the position in it, the byte offset and the token when one is outside the
  /// vocabulary. Cost: one pass; O(log segments) to find the place.
  void read(int64_t first, std::span<int32_t> out) const;
  int32_t operator[](int64_t position) const;
  /// The tokens first .. first + count - 1, which must exist. Shares them. O(segments).
  Tokens part(int64_t first, int64_t count) const;
  std::vector<int32_t> to_vector() const;
  /// Reads evenly spaced blocks, all tokens of segments of up to `most` tokens: finds files of
  /// another vocabulary before training. Errors as read.
  void check_samples(int64_t most) const;

  friend bool operator==(const Tokens& a, const Tokens& b) {
    return a.to_vector() == b.to_vector();
  }

 private:
  std::vector<TokenSegment> segments_;
  std::vector<int64_t> starts_ = {0};  // of each segment, and the end
  int64_t vocabulary_ = 0;             // 0 = not checked
  std::string tokenizer_;
};

}  // namespace strait
