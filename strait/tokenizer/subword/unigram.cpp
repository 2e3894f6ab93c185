// Unigram: of all ways to cut a piece the one with the largest sum of scores (Kudo, "Subword
// regularization", 2018), found by Viterbi's algorithm.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "strait/base/errors.h"
#include "strait/tokenizer/subword/characters.h"
#include "strait/tokenizer/subword/json_part.h"
#include "strait/tokenizer/subword/model.h"
#include "strait/tokenizer/subword/sorted_pieces.h"

namespace strait::subword {
namespace {

/// How far below the lowest score unknown characters are, as in SentencePiece.
constexpr double kUnknownPenalty = 10.0;
constexpr int32_t kNone = -1;

class Unigram : public Model {
 public:
  Unigram(const Json& json, const Vocabulary& vocabulary);
  void append(std::string_view piece, std::vector<int32_t>& out) const override;

 private:
  /// The best way to what ends here: its last token begins at `begin`. `token` kNone: one unknown
  /// character.
  struct Node {
    double score = 0;
    size_t begin = 0;
    int32_t token = kNone;
    bool reached = false;
  };
  static void offer(Node& node, double score, size_t begin, int32_t token);
  std::vector<Node> best_ways(std::string_view piece) const;
  void append_unknown(std::string_view text, std::vector<int32_t>& out) const;

  const Vocabulary& vocabulary_;
  std::vector<double> scores_;
  SortedPieces pieces_;
  double unknown_score_ = 0;
  int32_t unknown_ = kNone;
  bool byte_fallback_ = false;
};

Unigram::Unigram(const Json& json, const Vocabulary& vocabulary) : vocabulary_(vocabulary) {
  std::vector<SortedPieces::Entry> entries;
  double lowest = 0;
  for (const Json& entry : json.at("vocab").as_array()) {
    const auto token = static_cast<int32_t>(scores_.size());
    const double score = entry.as_array()[1].as_number();
    if (!std::isfinite(score)) throw UserError(fmt::format("model.vocab[{}]: no score", token));
    lowest = token == 0 ? score : std::min(lowest, score);
    scores_.push_back(score);
    const std::string& text = vocabulary.text(token);
    if (!text.empty() && !vocabulary.is_special(token)) entries.emplace_back(text, token);
  }
  pieces_ = SortedPieces(std::move(entries));
  unknown_score_ = lowest - kUnknownPenalty;
  byte_fallback_ = flag_or(json, "byte_fallback", false);
  if (const Json* unknown = json.find("unk_id"); !absent(unknown)) {
    if (unknown->as_integer() < 0 || unknown->as_integer() >= vocabulary.size())
      throw UserError(
          fmt::format("model.unk_id {} is not in the vocabulary", unknown->as_integer()));
    unknown_ = static_cast<int32_t>(unknown->as_integer());
  }
}

void Unigram::offer(Node& node, double score, size_t begin, int32_t token) {
  if (!node.reached || score > node.score) node = {score, begin, token, true};
}

std::vector<Unigram::Node> Unigram::best_ways(std::string_view piece) const {
  std::vector<Node> nodes(piece.size() + 1);
  for (size_t begin = 0; begin < piece.size();) {
    const double so_far = nodes[begin].score;
    size_t next = begin;
    next_character(piece, next);
    bool single = false;
    pieces_.each_prefix(piece.substr(begin), [&](size_t length, int32_t token) {
      const double score = scores_[static_cast<size_t>(token)] + so_far;
      offer(nodes[begin + length], score, begin, token);
      single |= begin + length == next;
    });
    if (!single) offer(nodes[next], unknown_score_ + so_far, begin, kNone);
    begin = next;
  }
  return nodes;
}

void Unigram::append_unknown(std::string_view text, std::vector<int32_t>& out) const {
  if (byte_fallback_ && vocabulary_.append_bytes(text, out)) return;
  if (unknown_ == kNone) no_token_for(text);
  out.push_back(unknown_);
}

void Unigram::append(std::string_view piece, std::vector<int32_t>& out) const {
  const std::vector<Node> nodes = best_ways(piece);
  std::vector<size_t> ends;
  for (size_t end = piece.size(); end > 0; end = nodes[end].begin) ends.push_back(end);
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    if (nodes[*end].token != kNone) {
      out.push_back(nodes[*end].token);
      continue;
    }
    const size_t begin = nodes[*end].begin;  // unknown characters that stand together are one
    while (std::next(end) != ends.rend() && nodes[*std::next(end)].token == kNone) ++end;
    append_unknown(piece.substr(begin, *end - begin), out);
  }
}

}  // namespace

std::unique_ptr<Model> make_unigram(const Json& json, const Vocabulary& vocabulary) {
  return std::make_unique<Unigram>(json, vocabulary);
}

}  // namespace strait::subword
