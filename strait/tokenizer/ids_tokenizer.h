// A vocabulary of which nothing but the size is known: its text form is the numbers of the tokens.
#pragma once

#include <optional>

#include "strait/tokenizer/tokenizer.h"

namespace strait {

/// For data that are tokens already when their tokenizer is not at hand. Token t is written " t",
/// in decimal digits, so that " 17 4" is two tokens.
class IdsTokenizer : public Tokenizer {
 public:
  /// `vocabulary` >= 1 tokens; `end_of_document` one of them, if documents end or begin with it.
  explicit IdsTokenizer(int64_t vocabulary, std::optional<int32_t> end_of_document = std::nullopt);
  /// "ids:N" or "ids:N/E". UserError (key data.tokenizer) naming what is wrong.
  static IdsTokenizer from_spec(const std::string& spec);

  std::string kind() const override { return "ids"; }
  int64_t vocabulary_size() const override { return vocabulary_; }
  /// TextError where `text` is no space and number below the vocabulary.
  std::vector<int32_t> encode(std::string_view text, int threads = 1) const override;
  std::string_view token_bytes(int32_t token) const override;
  std::optional<int32_t> end_of_document() const override { return end_of_document_; }
  std::string serialize() const override;

 private:
  int64_t vocabulary_;
  std::optional<int32_t> end_of_document_;
  std::vector<std::string> texts_;
};

/// Whether data.tokenizer names one.
bool names_ids(const std::string& spec);

}  // namespace strait
