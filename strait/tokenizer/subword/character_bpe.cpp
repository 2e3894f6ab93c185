// BPE whose smallest tokens are characters, with tokens of bytes for all others: Llama 2, Mistral,
// Gemma.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "strait/base/errors.h"
#include "strait/tokenizer/subword/characters.h"
#include "strait/tokenizer/subword/json_part.h"
#include "strait/tokenizer/subword/merge_queue.h"
#include "strait/tokenizer/subword/model.h"

namespace strait::subword {
namespace {

constexpr std::string_view kMark = "\u2581";  // what SentencePiece writes for a space
constexpr int32_t kNone = -1;

class CharacterBpe : public Model {
 public:
  CharacterBpe(const Json& json, const Vocabulary& vocabulary);
  void append(std::string_view piece, std::vector<int32_t>& out) const override;

 private:
  void read_merges(const Json& merges);
  int32_t token_of(const std::string& text, size_t merge) const;
  bool marks_are_borders() const;
  void append_part(std::string_view part, std::vector<int32_t>& out) const;
  std::vector<int32_t> characters_of(std::string_view part) const;
  int32_t rank(int32_t left, int32_t right) const;

  const Vocabulary& vocabulary_;
  std::unordered_map<uint64_t, int32_t> ranks_;
  std::vector<int32_t> results_;
  int32_t unknown_;
  bool byte_fallback_, fuse_unknown_, ignore_merges_;
  /// No token goes over from another character to a mark, so a piece may be cut there.
  bool borders_ = false;
};

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

CharacterBpe::CharacterBpe(const Json& json, const Vocabulary& vocabulary)
    : vocabulary_(vocabulary),
      unknown_(unknown_token(json, vocabulary)),
      byte_fallback_(flag_or(json, "byte_fallback", false)),
      fuse_unknown_(flag_or(json, "fuse_unk", false)),
      ignore_merges_(flag_or(json, "ignore_merges", false)) {
  require_empty(json, "model", "continuing_subword_prefix");
  require_empty(json, "model", "end_of_word_suffix");
  const Json* dropout = json.find("dropout");
  if (!absent(dropout) && dropout->as_number() != 0)
    throw UserError("model.dropout is not supported; supported: null");
  read_merges(json.at("merges"));
  borders_ = !ignore_merges_ && marks_are_borders();
}

int32_t CharacterBpe::token_of(const std::string& text, size_t merge) const {
  const int32_t token = vocabulary_.find(text);
  if (token == kNone)
    throw UserError(fmt::format("merge {} needs the token \"{}\", which is not in the vocabulary",
                                merge, text));
  return token;
}

void CharacterBpe::read_merges(const Json& merges) {
  for (const Json& merge : merges.as_array()) {
    const size_t index = results_.size();
    const auto [left, right] = pair_of_merge(merge, index);
    const uint64_t key = key_of(token_of(left, index), token_of(right, index));
    if (!ranks_.emplace(key, static_cast<int32_t>(index)).second)
      throw UserError(fmt::format("merge {} stands in the list twice", index));
    results_.push_back(token_of(left + right, index));
  }
}

bool CharacterBpe::marks_are_borders() const {
  if (vocabulary_.find(kMark) == kNone) return false;
  for (const int32_t token : results_) {
    const std::string_view text = vocabulary_.text(token);
    const size_t last = text.rfind(kMark);
    if (last == std::string_view::npos) continue;
    for (size_t at = 0; at < last; at += kMark.size())
      if (!text.substr(at).starts_with(kMark)) return false;
  }
  return true;
}

int32_t CharacterBpe::rank(int32_t left, int32_t right) const {
  const auto found = ranks_.find(key_of(left, right));
  return found == ranks_.end() ? kNone : found->second;
}

std::vector<int32_t> CharacterBpe::characters_of(std::string_view part) const {
  std::vector<int32_t> tokens;
  bool unknown_before = false;
  for (size_t at = 0; at < part.size();) {
    const size_t begin = at;
    next_character(part, at);
    const std::string_view character = part.substr(begin, at - begin);
    const int32_t token = vocabulary_.find(character);
    const bool known = token != kNone && !vocabulary_.is_special(token);
    if (known) {
      tokens.push_back(token);
    } else if (!byte_fallback_ || !vocabulary_.append_bytes(character, tokens)) {
      if (unknown_ == kNone) no_token_for(character);
      if (!unknown_before || !fuse_unknown_) tokens.push_back(unknown_);
      unknown_before = true;
      continue;
    }
    unknown_before = false;
  }
  return tokens;
}

void CharacterBpe::append_part(std::string_view part, std::vector<int32_t>& out) const {
  if (ignore_merges_) {
    const int32_t whole = vocabulary_.find(part);
    if (whole != kNone && !vocabulary_.is_special(whole)) return out.push_back(whole);
  }
  std::vector<int32_t> tokens = characters_of(part);
  merge_all(
      tokens, [&](int32_t left, int32_t right) { return rank(left, right); },
      [&](int32_t r) { return results_[static_cast<size_t>(r)]; });
  out.insert(out.end(), tokens.begin(), tokens.end());
}

void CharacterBpe::append(std::string_view piece, std::vector<int32_t>& out) const {
  if (!borders_) return append_part(piece, out);
  while (!piece.empty()) {
    size_t border = 0;  // behind the marks that the rest begins with
    while (piece.substr(border).starts_with(kMark)) border += kMark.size();
    border = std::min(piece.find(kMark, border), piece.size());
    append_part(piece.substr(0, border), out);
    piece.remove_prefix(border);
  }
}

}  // namespace

std::unique_ptr<Model> make_character_bpe(const Json& json, const Vocabulary& vocabulary) {
  return std::make_unique<CharacterBpe>(json, vocabulary);
}

}  // namespace strait::subword
