// `strait convert` of data: text or tokens into files of tokens that training maps.
#pragma once

#include <cstdint>
#include <string>

#include "strait/base/json.h"
#include "strait/data/options.h"

namespace strait::convert {

/// "llm.c" or "megatron".
bool is_token_form(const std::string& form);

struct TokenFileOptions {
  std::string form = "llm.c";
  int64_t shard_tokens = 100'000'000;  // llm.c: of a shard, below 2^31
  int threads = 1;
};

/// Writes the tokens of `data`, as training would cut and encode it, into the new folder `to`:
///   llm.c     tokens_train_000000.bin ..., tokens_val_000000.bin ...; 16 bits per token up to
///             65,536 tokens in the vocabulary, else 32. Documents begin with the end-of-document
///             token.
///   megatron  tokens_train.{bin,idx}, tokens_val.{bin,idx}; 16 bits per token below 65,500, else
///             32. Documents end with the end-of-document token, if there is one.
/// and tokenizer.json. No files for a part without tokens. Documents are the lines of JSON-lines,
/// and what data.document_separator divides; otherwise all is one stream, written as it is. A run
/// with data.path = `to` trains on what it would train on with `data`. JSON-lines stream through;
/// text, and its tokens, are held in memory. Returns from, to, from_form, to_form, vocabulary,
/// training_tokens, validation_tokens, documents, files[{name, bytes}], notes[]. Errors: UserError
/// as make_corpus, when `to` exists, when no token is for training, and for documents in llm.c's
/// form without an end-of-document token; InputOutputError. On an error nothing is left; a kill
/// leaves a hidden folder that the next conversion into `to` removes.
Json convert_data(const DataOptions& data, const std::string& to, const TokenFileOptions& options);

}  // namespace strait::convert
