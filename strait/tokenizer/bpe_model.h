// What a byte-level BPE tokenizer consists of, as plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strait/tokenizer/split_pattern.h"

namespace strait {

/// The special token behind every document; also what GPT-2 calls it.
inline constexpr const char* kEndOfDocumentText = "<|endoftext|>";
/// What Llama 3 calls it.
inline constexpr const char* kLlamaEndOfDocumentText = "<|end_of_text|>";
inline constexpr int64_t kSmallestBpeVocabulary = 257;  // the bytes and the end of a document
inline constexpr int64_t kLargestBpeVocabulary = 1'000'000;

/// The pair (left, right) becomes `result`, whose bytes are theirs joined.
struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
  bool operator==(const Merge&) const = default;
};

/// Invariants, checked by BpeTokenizer: every byte is a token; merges refer to tokens and are
/// distinct pairs; special and added tokens are in range, and in no merge.
struct BpeModel {
  std::vector<std::string> tokens;      // bytes of each token; of a special or added one its text
  std::vector<Merge> merges;            // first = applied first
  std::vector<int32_t> special_tokens;  // never made by encode; ascending
  /// Text that spells one of these becomes it as a whole, before it is split; ascending.
  std::vector<int32_t> added_tokens;
  /// The special token written kEndOfDocumentText, otherwise kLlamaEndOfDocumentText, if there is
  /// one.
  std::optional<int32_t> end_of_document;
  SplitKind split = SplitKind::kGpt2;
  bool nfc = false;  // text is brought into Unicode's normal form C first, but for added tokens
  bool ignore_merges =
      false;  // a piece that is a token as a whole becomes it, whatever the merges say
  std::string post_processor;  // JSON that a file brought, for other programs; "" = none
  bool operator==(const BpeModel&) const = default;
};

}  // namespace strait
