// The models of tokenizer.json beyond byte-level BPE: a piece of normalized text to tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "strait/base/json.h"
#include "strait/tokenizer/subword/vocabulary.h"

namespace strait::subword {

/// Immutable and thread-safe. The vocabulary that one was made with must outlive it.
class Model {
 public:
  virtual ~Model() = default;
  /// Appends the tokens of `piece`, which is UTF-8 and not empty. UserError naming the character
  /// for which the model has no token, where it has none for unknown text either.
  virtual void append(std::string_view piece, std::vector<int32_t>& out) const = 0;
};

/// The member "model" by its type: "Unigram", "WordPiece" or "BPE" over characters. UserError
/// naming the member that is missing, damaged or unsupported.
std::unique_ptr<Model> make_model(const Json& json, const Vocabulary& vocabulary);

// One each; `json` is the member "model".
std::unique_ptr<Model> make_unigram(const Json& json, const Vocabulary& vocabulary);
std::unique_ptr<Model> make_wordpiece(const Json& json, const Vocabulary& vocabulary);
std::unique_ptr<Model> make_character_bpe(const Json& json, const Vocabulary& vocabulary);

/// UserError that names the first character of `text`.
[[noreturn]] void no_token_for(std::string_view text);

/// The token that `json` names under "unk_token", or -1 where it names none.
int32_t unknown_token(const Json& json, const Vocabulary& vocabulary);

}  // namespace strait::subword
