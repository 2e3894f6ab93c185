// One token per Unicode code point of the text it was made from, in ascending order, as nanoGPT's
// character-level data preparation numbers them.
#pragma once

#include <memory>

#include "strait/base/json.h"
#include "strait/tokenizer/tokenizer.h"

namespace strait {

class CharTokenizer : public Tokenizer {
 public:
  /// `characters`: ascending code points, no surrogates, at least one; otherwise UserError.
  explicit CharTokenizer(std::vector<char32_t> characters);
  /// The distinct characters of `text`. UserError with the byte offset when it is not UTF-8, or is
  /// empty.
  static CharTokenizer from_text(std::string_view text);
  /// {"characters": [code point, ...]}.
  static CharTokenizer from_json(const Json& json);

  std::string kind() const override { return "char"; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(characters_.size()); }
  /// TextError naming the first character that is not in the vocabulary and its byte offset.
  std::vector<int32_t> encode(std::string_view text, int threads = 1) const override;
  std::string_view token_bytes(int32_t token) const override;
  std::string serialize() const override;

 private:
  std::vector<char32_t> characters_;
  std::vector<std::string> bytes_;  // by token
  std::vector<int32_t> token_of_;   // by code point up to the largest; -1 = none
};

}  // namespace strait
