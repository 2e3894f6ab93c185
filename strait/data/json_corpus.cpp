#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "strait/base/errors.h"
#include "strait/data/corpus_forms.h"
#include "strait/data/json_lines.h"
#include "strait/tokenizer/utf8.h"

namespace strait {
namespace {

/// Text that is encoded at a time, per thread.
constexpr size_t kBatchBytes = size_t{1} << 20;

/// What stands behind a document where no token does.
std::string ending(const DataOptions& options) {
  return options.document_separator.empty() ? "\n" : options.document_separator;
}

using Encoded = std::vector<std::vector<int32_t>>;

/// A document and where it stands.
struct Line {
  std::string text;
  int64_t number;
};

/// What encodes the lines of a file.
struct LineEncoder {
  const std::string& file;
  const std::string& field;
  const Tokenizer& tokenizer;

  std::vector<int32_t> encode(const Line& line) const {
    try {
      return tokenizer.encode(line.text);
    } catch (const TextError& error) {
      ErrorPlace place;
      place.file = file;
      place.line = line.number;
      throw UserError(fmt::format("{}, line {}: in the member \"{}\", {}", file, line.number, field,
                                  error.what()),
                      place);
    }
  }
};

Encoded encode_batch(const std::vector<Line>& lines, const LineEncoder& encoder, int threads) {
  Encoded encoded(lines.size());
  std::vector<std::exception_ptr> failures(lines.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < lines.size(); i = next++) {
      try {
        encoded[i] = encoder.encode(lines[i]);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
  }
  for (const auto& failure : failures)  // the first in order, whatever thread met it
    if (failure) std::rethrow_exception(failure);
  return encoded;
}

/// Gathers lines and hands them on encoded, batch by batch.
class BatchEncoder {
 public:
  BatchEncoder(const LineEncoder& encoder, const DataOptions& options, int threads,
               const TokenSink& sink)
      : encoder_(encoder),
        threads_(threads),
        sink_(sink),
        end_(encoder.tokenizer.end_of_document()) {
    if (!end_) ending_ = ending(options);
  }

  void add(std::string text, int64_t line) {
    text += ending_;
    bytes_ += text.size();
    lines_.push_back({std::move(text), line});
    if (bytes_ >= kBatchBytes * static_cast<size_t>(threads_)) flush();
  }

  void flush() {
    Encoded encoded = encode_batch(lines_, encoder_, threads_);
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (end_) encoded[i].push_back(*end_);
      sink_(encoded[i], static_cast<int64_t>(lines_[i].text.size()));
    }
    lines_.clear();
    bytes_ = 0;
  }

 private:
  const LineEncoder encoder_;
  int threads_;
  const TokenSink& sink_;
  std::optional<int32_t> end_;
  std::string ending_;
  std::vector<Line> lines_;
  size_t bytes_ = 0;
};

/// The distinct characters of all lines, ascending.
std::string characters_of(const DataFiles& files, const DataOptions& options) {
  std::set<std::string> found;
  const auto take = [&](std::string_view text) {
    for (size_t at = 0; at < text.size();) {
      const size_t length = std::max<size_t>(1, utf8_sequence_length(text, at));
      found.emplace(text.substr(at, length));
      at += length;
    }
  };
  take(ending(options));
  for (const auto* part : {&files.training, &files.validation})
    for (const std::string& file : *part)
      read_json_lines(file, options.text_field,
                      [&](const std::string& text, int64_t) { take(text); });
  std::string all;
  for (const std::string& character : found) all += character;
  return all;
}

int64_t text_bytes_of(const std::vector<std::string>& files, const DataOptions& options,
                      size_t ending_bytes) {
  int64_t bytes = 0;
  for (const std::string& file : files)
    read_json_lines(file, options.text_field, [&](const std::string& text, int64_t) {
      bytes += static_cast<int64_t>(text.size() + ending_bytes);
    });
  return bytes;
}

/// The text of the training part, for learning merges: none of separators, which a token stands
/// for, so that the cut does not count them either.
std::string training_text(const DataFiles& files, const DataOptions& options) {
  int64_t most = INT64_MAX;
  if (files.validation.empty())
    most = training_share(options, text_bytes_of(files.training, options, 0));
  std::string all;
  int64_t position = 0;
  for (const std::string& file : files.training)
    read_json_lines(file, options.text_field, [&](const std::string& text, int64_t) {
      if (position < most) all += (all.empty() ? "" : "\n") + text;
      position += static_cast<int64_t>(text.size());
    });
  return all;
}

/// A run of documents in memory.
struct Documents {
  std::vector<int32_t> tokens;
  std::vector<int64_t> starts, text_starts;
  int64_t text_bytes = 0;
};

Documents read_documents(const std::vector<std::string>& files, const DataOptions& options,
                         const Tokenizer& tokenizer, int threads) {
  Documents read;
  encode_json_lines(files, options, tokenizer, threads, [&](auto tokens, int64_t text_bytes) {
    read.starts.push_back(static_cast<int64_t>(read.tokens.size()));
    read.text_starts.push_back(read.text_bytes);
    read.tokens.insert(read.tokens.end(), tokens.begin(), tokens.end());
    read.text_bytes += text_bytes;
  });
  return read;
}

struct Range {
  size_t begin, end;  // documents
};

TokenPart part_of(const Documents& all, const Tokens& tokens, Range range,
                  const DataOptions& options, const Tokenizer& tokenizer) {
  const auto at = [&](const std::vector<int64_t>& starts, size_t i, int64_t end) {
    return i < starts.size() ? starts[i] : end;
  };
  const int64_t begin = at(all.starts, range.begin, tokens.size());
  const int64_t end = at(all.starts, range.end, tokens.size());
  TokenPart part;
  part.tokens = tokens.part(begin, end - begin);
  part.text_bytes = at(all.text_starts, range.end, all.text_bytes) -
                    at(all.text_starts, range.begin, all.text_bytes);
  if (options.document_separator.empty())
    part.joined_documents = static_cast<int64_t>(range.end - range.begin);
  else
    for (size_t i = range.begin; i < range.end; ++i)
      part.document_starts.push_back(all.starts[i] - begin);
  count_scored(tokenizer, part);
  return part;
}

}  // namespace

void encode_json_lines(const std::vector<std::string>& files, const DataOptions& options,
                       const Tokenizer& tokenizer, int threads, const TokenSink& sink) {
  for (const std::string& file : files) {
    BatchEncoder encoder({file, options.text_field, tokenizer}, options, threads, sink);
    try {
      read_json_lines(file, options.text_field,
                      [&](std::string text, int64_t line) { encoder.add(std::move(text), line); });
      encoder.flush();
    } catch (UserError& error) {
      if (!error.place().file) error.place().file = file;
      if (!error.place().key) error.place().key = "data.path";
      throw;
    }
  }
}

int64_t json_text_bytes(const std::vector<std::string>& files, const DataOptions& options,
                        const Tokenizer& tokenizer) {
  return text_bytes_of(files, options, tokenizer.end_of_document() ? 0 : ending(options).size());
}

std::shared_ptr<const Tokenizer> json_tokenizer(const DataFiles& files, const DataOptions& options,
                                                std::shared_ptr<const Tokenizer> existing) {
  if (existing != nullptr) return existing;
  std::string text;
  if (tokenizer_is_trained(options.tokenizer)) text = training_text(files, options);
  if (options.tokenizer == "char") text = characters_of(files, options);
  return make_tokenizer(options.tokenizer, text);
}

Corpus make_json_corpus(const DataFiles& files, const DataOptions& options,
                        std::shared_ptr<const Tokenizer> existing, int threads) {
  Corpus corpus;
  corpus.source = options.path;
  corpus.tokenizer = json_tokenizer(files, options, std::move(existing));
  Documents all = read_documents(files.training, options, *corpus.tokenizer, threads);
  size_t cut = all.starts.size();
  if (files.validation.empty()) {
    const int64_t bytes = training_share(options, all.text_bytes);
    cut = static_cast<size_t>(
        std::lower_bound(all.text_starts.begin(), all.text_starts.end(), bytes) -
        all.text_starts.begin());
  }
  const Tokens tokens(std::move(all.tokens));
  const size_t count = all.starts.size();
  corpus.training = part_of(all, tokens, {0, cut}, options, *corpus.tokenizer);
  corpus.validation = part_of(all, tokens, {cut, count}, options, *corpus.tokenizer);
  if (files.validation.empty()) return corpus;
  Documents other = read_documents(files.validation, options, *corpus.tokenizer, threads);
  const Tokens other_tokens(std::move(other.tokens));
  corpus.validation =
      part_of(other, other_tokens, {0, other.starts.size()}, options, *corpus.tokenizer);
  return corpus;
}

}  // namespace strait
