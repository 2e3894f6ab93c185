#include "strait/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "strait/base/errors.h"
#include "strait/data/corpus_forms.h"
#include "strait/data/synthetic.h"
#include "strait/data/text.h"
#include "strait/tokenizer/utf8.h"

namespace strait {
namespace {

size_t cut_offset(const std::string& text, const DataOptions& options) {
  const int64_t exact = training_share(options, static_cast<int64_t>(text.size()));
  const size_t cut = utf8_boundary_before(text, static_cast<size_t>(exact));
  const std::string& separator = options.document_separator;
  if (separator.empty() || cut == text.size()) return cut;
  // The first separator that ends behind the cut: does it begin before it?
  const size_t from = cut >= separator.size() ? cut - separator.size() + 1 : 0;
  const size_t found = text.find(separator, from);
  return found < cut ? found + separator.size() : cut;
}

/// Documents of `text`, each with the separators behind it; the first may begin with separators.
std::vector<std::string_view> documents_with_separators(std::string_view text,
                                                        const std::string& separator) {
  std::vector<std::string_view> documents;
  size_t begin = 0;
  bool empty = true;  // nothing but separators since `begin`
  for (size_t position = 0; position < text.size();) {
    const size_t found = std::min(text.find(separator, position), text.size());
    if (found > position && !empty) {
      documents.push_back(text.substr(begin, position - begin));
      begin = position;
    }
    if (found > position) empty = false;
    position = std::min(found + separator.size(), text.size());
  }
  if (begin < text.size()) documents.push_back(text.substr(begin));
  return documents;
}

/// Documents of `text` that are not empty, without separators.
std::vector<std::string_view> bare_documents(std::string_view text, const std::string& separator) {
  std::vector<std::string_view> documents;
  for (size_t position = 0; position < text.size();) {
    const size_t found = std::min(text.find(separator, position), text.size());
    if (found > position) documents.push_back(text.substr(position, found - position));
    position = found + separator.size();
  }
  return documents;
}

/// Merges of documents alone: a token stands for what separates them.
std::unique_ptr<Tokenizer> learned_tokenizer(std::string_view training,
                                             const DataOptions& options) {
  if (options.document_separator.empty()) return make_tokenizer(options.tokenizer, training);
  std::string documents;
  for (const std::string_view document : bare_documents(training, options.document_separator))
    (documents += document) += '\n';
  return make_tokenizer(options.tokenizer, documents);
}

/// Encodes parts of one text.
struct Encoder {
  const std::string& text;
  const Tokenizer& tokenizer;
  int threads;

  std::vector<int32_t> encode(std::string_view part) const {
    try {
      return tokenizer.encode(part, threads);
    } catch (const TextError& error) {
      throw error.at(error.offset() + static_cast<size_t>(part.data() - text.data()));
    }
  }
};

void append_documents(const std::vector<std::string_view>& documents, const Encoder& encoder,
                      TokenPart& part) {
  const auto end = encoder.tokenizer.end_of_document();
  std::vector<int32_t> all;
  for (const std::string_view document : documents) {
    part.text_bytes += static_cast<int64_t>(document.size());
    part.document_starts.push_back(static_cast<int64_t>(all.size()));
    const std::vector<int32_t> tokens = encoder.encode(document);
    all.insert(all.end(), tokens.begin(), tokens.end());
    if (end) all.push_back(*end);
  }
  part.tokens = Tokens(std::move(all));
}

TokenPart make_part(std::string_view text, const std::string& separator, const Encoder& encoder) {
  TokenPart part;
  if (separator.empty()) {
    part.text_bytes = static_cast<int64_t>(text.size());
    part.tokens = encoder.encode(text);
  } else {
    const bool marked = encoder.tokenizer.end_of_document().has_value();
    append_documents(
        marked ? bare_documents(text, separator) : documents_with_separators(text, separator),
        encoder, part);
  }
  count_scored(encoder.tokenizer, part);
  return part;
}

}  // namespace

int64_t training_share(const DataOptions& options, int64_t whole) {
  if (!(options.validation_share >= 0 && options.validation_share < 1)) {
    ErrorPlace place;
    place.key = "data.validation_share";
    throw UserError(
        fmt::format("data.validation_share = {} is not in [0, 1)", options.validation_share),
        place);
  }
  return static_cast<int64_t>((1.0 - options.validation_share) * static_cast<double>(whole));
}

void count_scored(const Tokenizer& tokenizer, TokenPart& part) {
  part.scored_tokens = part.tokens.size();
  part.scored_bytes = part.text_bytes;
  const auto skip = [&](int64_t position) {
    --part.scored_tokens;
    part.scored_bytes -= static_cast<int64_t>(tokenizer.token_bytes(part.tokens[position]).size());
  };
  for (const int64_t start : part.document_starts) skip(start);
  if (part.document_starts.empty() && !part.tokens.empty()) skip(0);
}

Corpus make_corpus(const std::string& text, const DataOptions& options,
                   std::shared_ptr<const Tokenizer> existing, int threads) {
  const std::string_view whole = text;
  const size_t cut = cut_offset(text, options);
  const std::string_view training = whole.substr(0, cut);
  Corpus corpus;
  corpus.source = options.path;
  corpus.tokenizer = std::move(existing);
  if (corpus.tokenizer == nullptr)
    corpus.tokenizer = tokenizer_is_trained(options.tokenizer)
                           ? learned_tokenizer(training, options)
                           : make_tokenizer(options.tokenizer, whole);
  try {
    const Encoder encoder{text, *corpus.tokenizer, threads};
    corpus.training = make_part(training, options.document_separator, encoder);
    corpus.validation = make_part(whole.substr(cut), options.document_separator, encoder);
  } catch (UserError& error) {
    error.place().file = options.path;
    error.place().key = "data.path";
    throw;
  }
  return corpus;
}

namespace {

/// An error with an offset in `text` as one in its file.
TextError in_file(const TextError& error, const OpenData& data, const std::string& encoding) {
  const FilePosition position = position_in_file(data.text, error.offset(), encoding);
  TextError moved = error.at(position.offset);
  moved.place().file = data.files.training[position.file];
  moved.place().key = "data.path";
  return moved;
}

Corpus make_text_corpus(const OpenData& data, const DataOptions& options,
                        std::shared_ptr<const Tokenizer> existing, int threads) {
  try {
    return make_corpus(data.text.bytes, options, std::move(existing), threads);
  } catch (const TextError& error) {
    throw in_file(error, data, options.encoding);
  }
}

}  // namespace

OpenData open_data(const DataOptions& options) {
  try {
    OpenData data;
    data.files = find_data(options);
    check_data_options(options, data.files);
    training_share(options, 0);
    if (data.files.form == DataForm::kText) data.text = read_text(options, data.files.training);
    return data;
  } catch (InputOutputError& error) {
    error.place().key = "data.path";
    throw;
  }
}

Corpus make_corpus(OpenData data, const DataOptions& options,
                   std::shared_ptr<const Tokenizer> existing, int threads) {
  switch (data.files.form) {
    case DataForm::kText:
      return make_text_corpus(data, options, std::move(existing), threads);
    case DataForm::kJsonLines:
      return make_json_corpus(data.files, options, std::move(existing), threads);
    case DataForm::kLlmc:
    case DataForm::kMegatron:
      return make_token_corpus(data.files, options, std::move(existing));
    case DataForm::kSynthetic:
      return make_synthetic_corpus(options, std::move(existing));
  }
  throw InternalError("a form of data that makes no corpus");
}

Corpus make_corpus(const DataOptions& options, std::shared_ptr<const Tokenizer> existing,
                   int threads) {
  return make_corpus(open_data(options), options, std::move(existing), threads);
}

}  // namespace strait
