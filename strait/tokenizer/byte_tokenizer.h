// One token per byte: token b is byte b.
#pragma once

#include "strait/tokenizer/tokenizer.h"

namespace strait {

/// The "format" of what ByteTokenizer and CharTokenizer serialize to.
inline constexpr std::string_view kTokenizerFormat = "strait.tokenizer/1";

class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer();
  std::string kind() const override { return "byte"; }
  int64_t vocabulary_size() const override { return 256; }
  std::vector<int32_t> encode(std::string_view text, int threads = 1) const override;
  std::string_view token_bytes(int32_t token) const override;
  std::string serialize() const override;

 private:
  std::string bytes_;  // all 256, so that a token is a view of one
};

}  // namespace strait
