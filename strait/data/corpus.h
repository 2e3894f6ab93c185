// A text as tokens, cut into a training and a validation part.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strait/data/options.h"
#include "strait/data/shards/tokens.h"
#include "strait/data/source.h"
#include "strait/data/text.h"
#include "strait/tokenizer/tokenizer.h"

namespace strait {

/// One part of a corpus.
struct TokenPart {
  Tokens tokens;
  /// Positions in `tokens` where documents begin: ascending, first 0. Empty = one stream, in which
  /// no window is divided.
  std::vector<int64_t> document_starts;
  /// Documents begin at each of these tokens instead (llm.c shards), and where the part begins.
  std::optional<int32_t> document_token;
  /// Of the part's text in UTF-8; separators count where they stay in the text, not where the
  /// end-of-document token stands for them. This and the figures below are not counted for the
  /// training part of data that are tokens already, nor text where the tokenizer knows none.
  int64_t text_bytes = 0;

  /// Of JSON-lines without data.document_separator: the lines that this one stream is made of.
  int64_t joined_documents = 0;

  /// > 0: records of so many tokens, such as images. A sequence is one record, and the targets are
  /// its own tokens.
  int64_t record = 0;

  /// 0: not known, or one.
  int64_t num_documents() const {
    return std::max(joined_documents, static_cast<int64_t>(document_starts.size()));
  }
  bool has_documents() const { return !document_starts.empty() || document_token.has_value(); }

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

/// What data.path names, ready to become tokens: of text the text, of the others their files, not
/// yet read.
struct OpenData {
  DataFiles files;
  Text text;
};

/// Finds the data and checks the options against their form; reads text. Errors as find_data,
/// check_data_options and read_text.
OpenData open_data(const DataOptions& options);

/// The corpus of any form of data.
///   Text        as above.
///   JSON-lines  each line is a document. It ends with the end-of-document token or, where the
///               tokenizer has none, with document_separator ("" = a line break, and one stream).
///               The cut lies between documents. Lines are encoded as they are read; only the
///               tokens stay, and for bpe:N the training part's text while it is learnt.
///   Tokens      stay where they are, mapped. The cut is at (1 - validation_share) of the tokens.
///               The default of data.tokenizer means the tokenizer.json beside them. With
///               document_separator, which must be the text of the tokenizer's end-of-document
///               token if it has one: documents begin at that token (llm.c), or where the index
///               says (Megatron).
/// UserError naming file, line or byte offset; tokens outside the vocabulary are looked for in up
/// to 2^24 tokens of each file here, and in every batch later.
Corpus make_corpus(OpenData data, const DataOptions& options,
                   std::shared_ptr<const Tokenizer> existing = nullptr, int threads = 1);

/// open_data, then the above.
Corpus make_corpus(const DataOptions& options, std::shared_ptr<const Tokenizer> existing = nullptr,
                   int threads = 1);

}  // namespace strait
