#include "strait/tokenizer/subword/model.h"

#include <fmt/format.h>

#include "strait/base/errors.h"
#include "strait/tokenizer/subword/characters.h"
#include "strait/tokenizer/subword/json_part.h"

namespace strait::subword {

std::unique_ptr<Model> make_model(const Json& json, const Vocabulary& vocabulary) {
  const std::string type = type_of(json);
  if (type == "Unigram") return make_unigram(json, vocabulary);
  if (type == "WordPiece") return make_wordpiece(json, vocabulary);
  if (type == "BPE") return make_character_bpe(json, vocabulary);
  unsupported("model", type, "BPE, Unigram, WordPiece");
}

void no_token_for(std::string_view text) {
  size_t at = 0;
  const char32_t character = next_character(text, at);
  throw UserError(
      fmt::format("the tokenizer has no token for \"{}\" (U+{:04X}), nor one for unknown text",
                  text.substr(0, at), static_cast<uint32_t>(character)));
}

int32_t unknown_token(const Json& json, const Vocabulary& vocabulary) {
  const Json* text = json.find("unk_token");
  if (absent(text)) return -1;
  const int32_t token = vocabulary.find(text->as_string());
  if (token < 0)
    throw UserError(
        fmt::format("model.unk_token \"{}\" is not in the vocabulary", text->as_string()));
  return token;
}

}  // namespace strait::subword
