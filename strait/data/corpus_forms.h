// How each form of data becomes a corpus; make_corpus chooses. Contracts in corpus.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "strait/data/corpus.h"

namespace strait {

Corpus make_json_corpus(const DataFiles& files, const DataOptions& options,
                        std::shared_ptr<const Tokenizer> existing, int threads);
Corpus make_token_corpus(const DataFiles& files, const DataOptions& options,
                         std::shared_ptr<const Tokenizer> existing);

/// How many of `whole` bytes or tokens are for training. UserError (key data.validation_share).
int64_t training_share(const DataOptions& options, int64_t whole);

/// Fills in scored_tokens and scored_bytes from text_bytes and the documents of a part that has no
/// document_token.
void count_scored(const Tokenizer& tokenizer, TokenPart& part);

/// A tokenizer for JSON-lines: `existing`, or as make_tokenizer from what the lines say.
std::shared_ptr<const Tokenizer> json_tokenizer(const DataFiles& files, const DataOptions& options,
                                                std::shared_ptr<const Tokenizer> existing);

/// Bytes of the text of JSON-lines, with what ends the documents.
int64_t json_text_bytes(const std::vector<std::string>& files, const DataOptions& options,
                        const Tokenizer& tokenizer);

/// Takes the tokens of a document, its end included, and the bytes of its text.
using TokenSink = std::function<void(std::span<const int32_t> tokens, int64_t text_bytes)>;

/// Encodes the documents of JSON-lines in order, `threads` of them at a time.
void encode_json_lines(const std::vector<std::string>& files, const DataOptions& options,
                       const Tokenizer& tokenizer, int threads, const TokenSink& sink);

}  // namespace strait
