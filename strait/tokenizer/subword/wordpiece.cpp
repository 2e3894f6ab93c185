// WordPiece: of each word, again and again, the longest token that it begins with (Devlin et al.,
// "BERT", 2018).
#include <fmt/format.h>

#include "strait/base/errors.h"
#include "strait/tokenizer/subword/characters.h"
#include "strait/tokenizer/subword/json_part.h"
#include "strait/tokenizer/subword/model.h"
#include "strait/tokenizer/subword/sorted_pieces.h"

namespace strait::subword {
namespace {

constexpr int64_t kLongestWord = 100;  // characters, where the file does not say

class WordPiece : public Model {
 public:
  WordPiece(const Json& json, const Vocabulary& vocabulary);
  void append(std::string_view word, std::vector<int32_t>& out) const override;

 private:
  bool append_pieces(std::string_view word, std::vector<int32_t>& out) const;
  bool too_long(std::string_view word) const;

  SortedPieces first_, following_;  // of a word; the latter without their prefix
  int32_t unknown_;
  int64_t longest_word_ = kLongestWord;
};

WordPiece::WordPiece(const Json& json, const Vocabulary& vocabulary)
    : unknown_(unknown_token(json, vocabulary)) {
  const std::string prefix = text_or(json, "continuing_subword_prefix", "##");
  if (const Json* most = json.find("max_input_chars_per_word"); !absent(most))
    longest_word_ = most->as_integer();
  std::vector<SortedPieces::Entry> first, following;
  for (int32_t token = 0; token < vocabulary.size(); ++token) {
    const std::string_view text = vocabulary.text(token);
    if (vocabulary.is_special(token) || text.empty()) continue;
    first.emplace_back(text, token);
    if (text.size() > prefix.size() && text.starts_with(prefix))
      following.emplace_back(text.substr(prefix.size()), token);
  }
  first_ = SortedPieces(std::move(first));
  following_ = SortedPieces(std::move(following));
}

bool WordPiece::too_long(std::string_view word) const {
  int64_t characters = 0;
  for (size_t at = 0; at < word.size(); ++characters) next_character(word, at);
  return characters > longest_word_;
}

bool WordPiece::append_pieces(std::string_view word, std::vector<int32_t>& out) const {
  for (size_t at = 0; at < word.size();) {
    size_t longest = 0;
    int32_t best = -1;
    (at == 0 ? first_ : following_).each_prefix(word.substr(at), [&](size_t length, int32_t token) {
      longest = length;
      best = token;
    });
    if (best < 0) return false;
    out.push_back(best);
    at += longest;
  }
  return true;
}

void WordPiece::append(std::string_view word, std::vector<int32_t>& out) const {
  const size_t before = out.size();
  if (!too_long(word) && append_pieces(word, out)) return;
  out.resize(before);
  if (unknown_ < 0) no_token_for(word);
  out.push_back(unknown_);
}

}  // namespace

std::unique_ptr<Model> make_wordpiece(const Json& json, const Vocabulary& vocabulary) {
  return std::make_unique<WordPiece>(json, vocabulary);
}

}  // namespace strait::subword
