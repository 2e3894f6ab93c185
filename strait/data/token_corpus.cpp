#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/data/corpus_forms.h"
#include "strait/data/shards/megatron.h"
#include "strait/data/shards/plain_tokens.h"

namespace strait {
namespace {

constexpr int64_t kCheckedTokens = int64_t{1} << 24;  // of each file, before training

[[noreturn]] void refuse(const std::string& file, const std::string& message, const char* key) {
  ErrorPlace place;
  place.file = file;
  place.key = key;
  throw UserError(message, place);
}

std::shared_ptr<const Tokenizer> tokenizer_of(const DataFiles& files, const DataOptions& options) {
  if (options.tokenizer != DataOptions().tokenizer) return make_tokenizer(options.tokenizer, "");
  const std::filesystem::path beside =
      std::filesystem::path(files.training.front()).parent_path() / "tokenizer.json";
  if (path_exists(beside.string())) return load_tokenizer(beside.string());
  refuse(
      files.training.front(),
      fmt::format(
          "data.tokenizer: {} holds tokens, and there is no {} that says what they mean; name the "
          "tokenizer.json that they were made with, or only the size of its vocabulary, as in "
          "\"ids:50257\"",
          files.training.front(), beside.string()),
      "data.tokenizer");
}

/// document_separator means the end-of-document token; its text is compared so that no value is
/// ignored.
void check_separator(const DataFiles& files, const DataOptions& options,
                     const Tokenizer& tokenizer) {
  if (options.document_separator.empty()) return;
  const auto end = tokenizer.end_of_document();
  if (!end && files.form == DataForm::kLlmc)
    refuse(files.training.front(),
           fmt::format(
               "data.document_separator: llm.c shards mark documents with the end-of-document "
               "token, and "
               "the {} tokenizer has none; leave it \"\"{}",
               tokenizer.kind(),
               tokenizer.kind() == "ids" ? ", or name the token, as in \"ids:50257/50256\"" : ""),
           "data.document_separator");
  if (!end) return;
  const std::string_view text = tokenizer.token_bytes(*end);
  if (options.document_separator != text)
    refuse(files.training.front(),
           fmt::format(
               "data.document_separator = \"{}\": in tokens documents are marked by \"{}\", the "
               "tokenizer's end-of-document token; write that, or \"\" for one stream",
               options.document_separator, text),
           "data.document_separator");
}

TokenPart open_part(const std::vector<std::string>& files, DataForm form, bool documents,
                    const Tokenizer& tokenizer) {
  TokenPart part;
  for (const std::string& file : files) {
    if (form == DataForm::kLlmc) {
      part.tokens.append(open_token_file(file));
      continue;
    }
    MegatronPair pair = open_megatron(file);
    if (documents)
      for (const int64_t start : pair.document_starts)
        part.document_starts.push_back(part.tokens.size() + start);
    part.tokens.append(std::move(pair.tokens));
  }
  if (documents && form == DataForm::kLlmc) part.document_token = tokenizer.end_of_document();
  part.tokens.set_vocabulary(tokenizer.vocabulary_size(),
                             fmt::format("the {} tokenizer", tokenizer.kind()));
  part.tokens.check_samples(kCheckedTokens);
  return part;
}

/// Moves what lies behind `cut` out of `part`.
TokenPart split_off(TokenPart& part, int64_t cut) {
  TokenPart rest;
  rest.document_token = part.document_token;
  rest.tokens = part.tokens.part(cut, part.tokens.size() - cut);
  part.tokens = part.tokens.part(0, cut);
  auto& starts = part.document_starts;
  const auto border = std::lower_bound(starts.begin(), starts.end(), cut);
  if (!starts.empty() && !rest.tokens.empty()) {
    if (border == starts.end() || *border != cut) rest.document_starts.push_back(0);
    for (auto start = border; start != starts.end(); ++start)
      rest.document_starts.push_back(*start - cut);
  }
  starts.erase(border, starts.end());
  return rest;
}

/// Counts the text of a part and what of it is scored, from the tokens. One pass.
void count_text(const Tokenizer& tokenizer, TokenPart& part) {
  std::vector<int32_t> lengths;
  const auto end = tokenizer.end_of_document();
  const bool known = tokenizer.kind() != "ids";
  for (int32_t token = 0; token < tokenizer.vocabulary_size(); ++token)
    lengths.push_back(
        known && token != end ? static_cast<int32_t>(tokenizer.token_bytes(token).size()) : 0);
  std::vector<int32_t> block(size_t{1} << 16);
  auto start = part.document_starts.begin();
  for (int64_t first = 0; first < part.tokens.size();) {
    const auto count = static_cast<int64_t>(
        std::min<size_t>(block.size(), static_cast<size_t>(part.tokens.size() - first)));
    part.tokens.read(first, std::span(block).first(static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; ++i) {
      const int32_t token = block[static_cast<size_t>(i)];
      const int32_t length = lengths[static_cast<size_t>(token)];
      bool begins = first + i == 0 || token == part.document_token;
      if (start != part.document_starts.end() && *start == first + i) {
        begins = true;
        ++start;
      }
      part.text_bytes += length;
      if (begins) continue;
      ++part.scored_tokens;
      part.scored_bytes += length;
    }
    first += count;
  }
}

}  // namespace

Corpus make_token_corpus(const DataFiles& files, const DataOptions& options,
                         std::shared_ptr<const Tokenizer> existing) {
  Corpus corpus;
  corpus.source = options.path;
  corpus.tokenizer = existing != nullptr ? std::move(existing) : tokenizer_of(files, options);
  const Tokenizer& tokenizer = *corpus.tokenizer;
  check_separator(files, options, tokenizer);
  const bool documents = !options.document_separator.empty();
  corpus.training = open_part(files.training, files.form, documents, tokenizer);
  if (files.validation.empty())
    corpus.validation =
        split_off(corpus.training, training_share(options, corpus.training.tokens.size()));
  else
    corpus.validation = open_part(files.validation, files.form, documents, tokenizer);
  count_text(tokenizer, corpus.validation);
  return corpus;
}

}  // namespace strait
