#include "strait/convert/token_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/convert/hidden_folder.h"
#include "strait/data/corpus_forms.h"
#include "strait/data/shards/llmc_shard.h"
#include "strait/data/shards/megatron.h"

namespace strait::convert {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLlmc = "llm.c";
constexpr const char* kMegatron = "megatron";
constexpr int64_t kBlockTokens = int64_t{1} << 20;  // that are copied at a time

[[noreturn]] void refuse(const std::string& file, const std::string& message, const char* key) {
  ErrorPlace place;
  place.file = file;
  if (*key != '\0') place.key = key;
  throw UserError(message, place);
}

/// Takes one part's documents, or its one stream, and makes files of them.
class PartWriter {
 public:
  virtual ~PartWriter() = default;
  virtual void begin_document() = 0;
  virtual void append(std::span<const int32_t> tokens) = 0;
  virtual void end_document() = 0;
  virtual void finish() = 0;
  int64_t tokens() const { return tokens_; }

 protected:
  int64_t tokens_ = 0;
};

class LlmcPart : public PartWriter {
 public:
  LlmcPart(std::string prefix, TokenType type, int64_t shard_tokens, std::optional<int32_t> mark)
      : prefix_(std::move(prefix)), type_(type), shard_tokens_(shard_tokens), mark_(mark) {}
  void begin_document() override {
    if (mark_) append(std::span<const int32_t>(&*mark_, 1));
  }
  void end_document() override {}
  void append(std::span<const int32_t> tokens) override {
    while (!tokens.empty()) {
      if (shard_ == nullptr)
        shard_ =
            std::make_unique<LlmcWriter>(fmt::format("{}_{:06}.bin", prefix_, shards_++), type_);
      const auto fits = static_cast<size_t>(shard_tokens_ - shard_->tokens());
      const auto now = tokens.first(std::min(fits, tokens.size()));
      shard_->append(now);
      tokens_ += static_cast<int64_t>(now.size());
      tokens = tokens.subspan(now.size());
      if (shard_->tokens() == shard_tokens_) finish();
    }
  }
  void finish() override {
    if (shard_ != nullptr) shard_->finish();
    shard_ = nullptr;
  }

 private:
  std::string prefix_;
  TokenType type_;
  int64_t shard_tokens_;
  std::optional<int32_t> mark_;
  std::unique_ptr<LlmcWriter> shard_;
  int64_t shards_ = 0;
};

class MegatronPart : public PartWriter {
 public:
  MegatronPart(std::string prefix, TokenType type, std::optional<int32_t> mark)
      : prefix_(std::move(prefix)), type_(type), mark_(mark) {}
  void begin_document() override {
    if (pair_ == nullptr) pair_ = std::make_unique<MegatronWriter>(prefix_, type_);
    pair_->begin_document();
  }
  void append(std::span<const int32_t> tokens) override {
    pair_->append(tokens);
    tokens_ += static_cast<int64_t>(tokens.size());
  }
  void end_document() override {
    if (mark_) append(std::span<const int32_t>(&*mark_, 1));
  }
  void finish() override {
    if (pair_ != nullptr) pair_->finish();
  }

 private:
  std::string prefix_;
  TokenType type_;
  std::optional<int32_t> mark_;
  std::unique_ptr<MegatronWriter> pair_;
};

/// One conversion: both parts and what is counted.
class Conversion {
 public:
  Conversion(const DataOptions& data, const TokenFileOptions& options)
      : data_(data), options_(options) {}

  void write_into(const std::string& folder) {
    folder_ = folder;
    OpenData open = open_data(data_);
    form_ = open.files.form;
    documents_known_ = form_ == DataForm::kJsonLines || has_documents(data_);
    if (form_ == DataForm::kJsonLines)
      write_json_lines(open.files);
    else
      write_corpus(make_corpus(std::move(open), data_, nullptr, options_.threads));
    require_training_tokens();
    save_tokenizer(*tokenizer_, folder_ + "/tokenizer.json");
  }

  Json result(const std::string& to) const {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(to)) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    Json files = Json::array();
    for (const fs::path& path : paths)
      files.push_back(Json::object({{"name", path.filename().string()},
                                    {"bytes", static_cast<int64_t>(fs::file_size(path))}}));
    Json notes = Json::array();
    if (validation_->tokens() == 0)
      notes.push_back(
          "there is no validation part; training cuts data.validation_share from the end");
    return Json::object({{"from", data_.path},
                         {"to", to},
                         {"from_form", name_of(form_)},
                         {"to_form", options_.form},
                         {"vocabulary", tokenizer_->vocabulary_size()},
                         {"training_tokens", training_->tokens()},
                         {"validation_tokens", validation_->tokens()},
                         {"documents", documents_known_ ? Json(documents_) : Json()},
                         {"files", files},
                         {"notes", notes}});
  }

 private:
  void require_training_tokens() const {
    if (training_->tokens() > 0) return;
    refuse(data_.path,
           fmt::format(
               "data.path: {} has no tokens to train on{}", data_.path,
               validation_->tokens() > 0
                   ? fmt::format(": data.validation_share = {} leaves none", data_.validation_share)
                   : ""),
           "data.path");
  }

  std::unique_ptr<PartWriter> part(const std::string& name) {
    const std::optional<int32_t> mark =
        documents_known_ ? tokenizer_->end_of_document() : std::nullopt;
    const int64_t vocabulary = tokenizer_->vocabulary_size();
    const std::string prefix = folder_ + "/tokens_" + name;
    if (options_.form == kMegatron)
      return std::make_unique<MegatronPart>(
          prefix, vocabulary < 65'500 ? TokenType::kUint16 : TokenType::kInt32, mark);
    return std::make_unique<LlmcPart>(
        prefix, vocabulary <= 65'536 ? TokenType::kUint16 : TokenType::kUint32,
        options_.shard_tokens, mark);
  }

  void start(std::shared_ptr<const Tokenizer> tokenizer) {
    tokenizer_ = std::move(tokenizer);
    if (options_.form == kLlmc && has_documents(data_) && !tokenizer_->end_of_document())
      refuse(
          data_.path,
          fmt::format(
              "llm.c shards mark documents with the end-of-document token, and the {} tokenizer "
              "has "
              "none; choose --to megatron, data.tokenizer = \"bpe:N\", or data.document_separator "
              "= \"\"",
              tokenizer_->kind()),
          "data.tokenizer");
    training_ = part("train");
    validation_ = part("val");
  }

  void write_json_lines(const DataFiles& files) {
    start(json_tokenizer(files, data_, nullptr));
    int64_t cut = INT64_MAX, position = 0;
    if (files.validation.empty() && data_.validation_share > 0)
      cut = training_share(data_, json_text_bytes(files.training, data_, *tokenizer_));
    encode_json_lines(files.training, data_, *tokenizer_, options_.threads,
                      [&](std::span<const int32_t> tokens, int64_t text_bytes) {
                        write_document(position < cut ? *training_ : *validation_, tokens);
                        position += text_bytes;
                      });
    encode_json_lines(
        files.validation, data_, *tokenizer_, options_.threads,
        [&](std::span<const int32_t> tokens, int64_t) { write_document(*validation_, tokens); });
    training_->finish();
    validation_->finish();
  }

  void write_document(PartWriter& writer, std::span<const int32_t> tokens) {
    if (tokenizer_->end_of_document()) tokens = tokens.first(tokens.size() - 1);
    writer.begin_document();
    writer.append(tokens);
    writer.end_document();
    ++documents_;
  }

  void write_corpus(const Corpus& corpus) {
    start(corpus.tokenizer);
    write_part(corpus.training, *training_);
    write_part(corpus.validation, *validation_);
  }

  void write_part(const TokenPart& part, PartWriter& writer) {
    if (part.tokens.empty()) return;
    std::vector<int64_t> starts = part.document_starts;
    if (part.document_token) starts = starts_at(part.tokens, *part.document_token);
    if (starts.empty()) starts = {0};
    starts.push_back(part.tokens.size());
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      int64_t begin = starts[i], end = starts[i + 1];
      if (documents_known_) {
        // The writer marks documents as its format does.
        const auto mark = tokenizer_->end_of_document();
        if (mark && part.tokens[begin] == *mark)
          ++begin;
        else if (mark && part.tokens[end - 1] == *mark)
          --end;
        ++documents_;
      }
      writer.begin_document();
      copy(part.tokens, begin, end, writer);
      writer.end_document();
    }
    writer.finish();
  }

  std::vector<int64_t> starts_at(const Tokens& tokens, int32_t mark) {
    std::vector<int64_t> starts = {0};
    for_each_block(tokens, 0, tokens.size(), [&](int64_t first, std::span<const int32_t> block) {
      for (size_t i = 0; i < block.size(); ++i)
        if (block[i] == mark && first + static_cast<int64_t>(i) > 0)
          starts.push_back(first + static_cast<int64_t>(i));
    });
    return starts;
  }

  void copy(const Tokens& tokens, int64_t begin, int64_t end, PartWriter& writer) {
    for_each_block(tokens, begin, end,
                   [&](int64_t, std::span<const int32_t> block) { writer.append(block); });
  }

  template <class Action>
  void for_each_block(const Tokens& tokens, int64_t begin, int64_t end, Action action) {
    while (begin < end) {
      block_.resize(static_cast<size_t>(std::min(kBlockTokens, end - begin)));
      tokens.read(begin, block_);
      action(begin, std::span<const int32_t>(block_));
      begin += static_cast<int64_t>(block_.size());
    }
  }

  const DataOptions& data_;
  const TokenFileOptions& options_;
  std::string folder_;  // where the files are written
  DataForm form_ = DataForm::kText;
  bool documents_known_ = false;
  int64_t documents_ = 0;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<PartWriter> training_, validation_;
  std::vector<int32_t> block_;
};

}  // namespace

bool is_token_form(const std::string& form) { return form == kLlmc || form == kMegatron; }

Json convert_data(const DataOptions& data, const std::string& to, const TokenFileOptions& options) {
  ensure(is_token_form(options.form) && options.shard_tokens >= 1, "convert_data: wrong options");
  if (path_exists(to))
    refuse(to, fmt::format("{} is already there; name a path that is not", to), "");
  if (to.ends_with(".safetensors"))
    refuse(to,
           fmt::format("{} ends with .safetensors, but --to {} writes a folder; name a folder", to,
                       options.form),
           "--to");
  HiddenFolder hidden(to);
  Conversion conversion(data, options);
  conversion.write_into(hidden.path());
  hidden.publish();
  return conversion.result(to);
}

}  // namespace strait::convert
