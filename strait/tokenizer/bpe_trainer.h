// Learns byte-pair merges from text (Sennrich et al. 2016, on bytes as GPT-2 does).
#pragma once

#include <string_view>

#include "strait/tokenizer/bpe_model.h"

namespace strait {

struct BpeTrainOptions {
  int64_t vocabulary_size = 4096;  // bytes, merges and the end of a document together
  /// A pair that occurs less often is not merged, so that a small text yields a smaller vocabulary
  /// rather than tokens that memorise it.
  int64_t minimum_count = 2;
  /// A longer text is represented by 64 equal slices, evenly spaced, of this many bytes in total.
  int64_t sample_bytes = int64_t{64} << 20;
};

/// Tokens: the 256 bytes in GPT-2's order, one per merge, then kEndOfDocumentText as the last. Each
/// merge joins the pair that is most frequent inside the pieces of SplitPattern (adjacent positions
/// counted, overlaps too); of equally frequent pairs the one with the smaller left, then smaller
/// right token. Deterministic. Cost: one pass over the text to count distinct pieces, then
/// O(occurrences of merged pairs in distinct pieces); about 40 bytes of memory per byte of distinct
/// pieces. UserError when vocabulary_size is out of [257, 1000000].
BpeModel train_bpe(std::string_view text, const BpeTrainOptions& options);

}  // namespace strait
