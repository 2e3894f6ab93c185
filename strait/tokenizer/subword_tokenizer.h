// Tokenizers of tokenizer.json beyond byte-level BPE: Unigram, WordPiece, and BPE over characters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/tokenizer/tokenizer.h"

namespace strait {

/// Text is normalized, cut into pieces, and each piece becomes tokens by the model; see the headers
/// of strait/tokenizer/subword for what is supported of each part. Special tokens are never made,
/// so post_processor has no effect; added tokens that are not special are looked for first, the
/// longest of those that begin at the leftmost place. Not lossless: text comes back normalized.
class SubwordTokenizer : public Tokenizer {
 public:
  /// `json` is `text`, parsed. UserError naming the member that is missing, damaged or unsupported.
  SubwordTokenizer(const Json& json, std::string_view text);
  ~SubwordTokenizer() override;

  /// "unigram", "wordpiece" or "bpe".
  std::string kind() const override { return kind_; }
  bool is_lossless() const override { return false; }
  int64_t vocabulary_size() const override;
  /// UserError with the byte offset where `text` is not UTF-8. One thread; holds the normalized
  /// text and its pieces, some ten bytes per byte of text.
  std::vector<int32_t> encode(std::string_view text, int threads = 1) const override;
  std::string_view token_bytes(int32_t token) const override;
  std::optional<int32_t> end_of_document() const override { return end_of_document_; }
  /// The file as it was read.
  std::string serialize() const override { return text_; }

 private:
  struct Parts;
  void encode_stretch(std::string_view text, bool at_start, std::vector<int32_t>& out) const;

  std::string text_, kind_;
  std::unique_ptr<const Parts> parts_;
  std::vector<std::string> token_texts_;
  std::optional<int32_t> end_of_document_;
};

/// Whether a tokenizer.json is for SubwordTokenizer; otherwise it is byte-level BPE, or wrong.
bool is_subword_json(const Json& json);

}  // namespace strait
