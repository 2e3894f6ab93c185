// Batches of whole documents, measured in tokens. They do not depend on the number of ranks: every
// rank makes the same list, from which a plan gives each its part.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strait/data/corpus.h"

namespace strait {

/// Tokens [start, start + length) of the training part: a document, or one of the pieces into which
/// the context cuts it. Position ids count from 0 in each.
struct DocumentPiece {
  int64_t start = 0, length = 0;
  bool ends_document = true;  // the last token has no target
  bool operator==(const DocumentPiece&) const = default;
};

/// Where the next batch begins; what a checkpoint keeps of the data.
struct BatchPosition {
  int64_t epoch = 0;
  int64_t document = 0;  // place in the epoch's order
  int64_t token = 0;     // of that document
  bool operator==(const BatchPosition&) const = default;
};

/// Where the documents of a part begin, and where the last one ends. Cost: reads the tokens once
/// where documents begin with a token.
std::vector<int64_t> document_bounds(const TokenPart& part);

class TokenBatches {
 public:
  /// `corpus` must outlive the object. UserError: no separated documents, or an empty one (key
  /// data.path); batch_tokens below the longest piece (key train.global_batch_tokens), naming the
  /// nearest valid choice. Cost: reads the tokens once where documents begin with a token.
  TokenBatches(const Corpus& corpus, int64_t context, int64_t batch_tokens, uint64_t seed);

  int64_t documents() const { return static_cast<int64_t>(starts_.size()) - 1; }
  /// Tokens of document `number` of the text.
  int64_t length(int64_t number) const;
  /// Of the piece in which a token of the text stands, on average.
  int64_t attended_length() const;
  /// Whether there may be a batch in which no token is predicted: of pieces of one token, each the
  /// end of its document, before one that finds no room. True for some data that have none.
  bool may_be_empty() const;
  /// Pieces from `position` on until the next one would exceed batch_tokens; at least one. Moves
  /// `position` behind them. An epoch has every document once, in an order that depends on (seed,
  /// epoch) alone. A position of another text that lies behind a document's end begins it anew,
  /// and one behind the last document begins the next epoch. Pure but for `position`; O(pieces).
  std::vector<DocumentPiece> next(BatchPosition& position) const;

  /// Inputs and targets of positions [begin, begin + inputs.size()) of a piece, which may lie on
  /// any rank. kIgnoredTarget where a document ends.
  void read(const DocumentPiece& piece, int64_t begin, std::span<int32_t> inputs,
            std::span<int32_t> targets) const;

 private:
  const TokenPart& part_;
  int64_t context_, batch_tokens_;
  uint64_t seed_;
  std::vector<int64_t> starts_;  // of documents, and the end of the last
};

}  // namespace strait
