// Byte-level BPE: any bytes, valid UTF-8 or not, become tokens and come back unchanged, or in the
// normal form that the model asks for.
#pragma once

#include <array>
#include <memory>

#include "strait/tokenizer/bpe_model.h"
#include "strait/tokenizer/flat_table.h"
#include "strait/tokenizer/split_pattern.h"
#include "strait/tokenizer/subword/sorted_pieces.h"
#include "strait/tokenizer/tokenizer.h"

namespace strait {

class BpeTokenizer : public Tokenizer {
 public:
  /// UserError when the model breaks an invariant of BpeModel; the message names the part.
  explicit BpeTokenizer(BpeModel model);
  BpeTokenizer(const BpeTokenizer&) = delete;
  BpeTokenizer& operator=(const BpeTokenizer&) = delete;

  std::string kind() const override { return "bpe"; }
  bool is_lossless() const override { return !model_.nfc; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(model_.tokens.size()); }
  /// Takes the added tokens out, from left to right and the longest first; splits what is between
  /// them by the model's SplitPattern; inside each piece joins, again and again, the pair of the
  /// earliest merge, the leftmost of several. Cost: a hash look-up per piece that
  /// occurred before; for others O(n^2) below 64 bytes, O(n log n) from there.
  std::vector<int32_t> encode(std::string_view text, int threads = 1) const override;
  std::string_view token_bytes(int32_t token) const override;
  std::optional<int32_t> end_of_document() const override { return model_.end_of_document; }
  /// A Hugging Face tokenizer.json.
  std::string serialize() const override;

  const BpeModel& model() const { return model_; }

 private:
  class PieceCache;
  void check() const;
  /// Text without added tokens; `cache` where one thread does it.
  void encode_stretch(std::string_view text, int threads, PieceCache& cache,
                      std::vector<int32_t>& out) const;
  void encode_range(std::string_view text, PieceCache& cache, std::vector<int32_t>& out) const;
  void encode_split(std::string_view text, PieceCache& cache, std::vector<int32_t>& out) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& out) const;
  void encode_long_piece(std::string_view piece, std::vector<int32_t>& out) const;
  /// Rank of the merge of two tokens, or -1.
  int32_t rank(int32_t left, int32_t right) const { return ranks_.find(pair_key(left, right)); }

  BpeModel model_;
  std::array<int32_t, 256> token_of_byte_{};
  PairTable ranks_;
  PieceTable whole_pieces_;  // tokens by their bytes, where merges are ignored
  SplitPattern pattern_;
  subword::SortedPieces added_;  // of model_.tokens
};

}  // namespace strait
