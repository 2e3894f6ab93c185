// A text as tokens, cut into a training and a validation part.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strait/data/options.h"
#include "strait/data/tokenizer.h"

namespace strait {

/// One part of a corpus.
struct TokenPart {
  std::vector<int32_t> tokens;
  /// Positions in `tokens` where documents begin: ascending, first 0. Empty = one stream, in which
  /// no window is divided.
  std::vector<int64_t> document_starts;
  int64_t text_bytes = 0;  // of the part's text in UTF-8, separators included

  /// Which tokens are predicted: all but the first of each document (of the part, for one stream).
  int64_t scored_tokens = 0;
  /// text_bytes without the bytes of those first tokens: what the scored tokens stand for.
  int64_t scored_bytes = 0;
};

/// Immutable once made; several loaders and threads may read it.
struct Corpus {
  std::string source;  // data.path, for messages
  std::shared_ptr<const Tokenizer> tokenizer;
  TokenPart training;
  TokenPart validation;  // no tokens when validation_share is 0
};

/// Cuts `text` (UTF-8) and encodes both parts.
///   Cut        the last character boundary at or before (1 - validation_share) of the bytes, moved
///   behind a
///              separator that it would cut through.
///   Tokenizer  `existing` when given (resuming, sampling), otherwise data.tokenizer: char takes
///   the
///              characters of the whole text, bpe is trained on the training part only.
///   Documents  when data.document_separator is set. With a tokenizer that has an end-of-document
///   token
///              the separators are removed, empty documents are dropped and each document ends with
///              that token. With the others the separator stays, as the end of the document before
///              it, so that the tokens still decode to the text.
/// The result depends on no thread count. UserError with the key of the option that is wrong.
Corpus make_corpus(const std::string& text, const DataOptions& options,
                   std::shared_ptr<const Tokenizer> existing = nullptr, int threads = 1);

/// read_text, then the above.
Corpus make_corpus(const DataOptions& options, std::shared_ptr<const Tokenizer> existing = nullptr,
                   int threads = 1);

/// Bits per byte of text from the mean loss in nats over the scored tokens of a part; 0 without
/// any.
double bits_per_byte(double mean_loss, const TokenPart& part);

}  // namespace strait
