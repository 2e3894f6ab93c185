#include "strait/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/tokenizer/bpe_json.h"
#include "strait/tokenizer/bpe_tokenizer.h"
#include "strait/tokenizer/bpe_trainer.h"
#include "strait/tokenizer/byte_tokenizer.h"
#include "strait/tokenizer/char_tokenizer.h"
#include "strait/tokenizer/ids_tokenizer.h"
#include "strait/tokenizer/subword_tokenizer.h"

namespace strait {
namespace {

constexpr std::string_view kBpePrefix = "bpe:";
constexpr std::array<const char*, 4> kChoices = {"byte", "char", "bpe:4096", "ids:50257"};

[[noreturn]] void spec_error(const std::string& what) {
  ErrorPlace place;
  place.key = "data.tokenizer";
  throw UserError(what, place);
}

int64_t bpe_vocabulary(const std::string& spec) {
  int64_t size = 0;
  const char* first = spec.data() + kBpePrefix.size();
  const char* last = spec.data() + spec.size();
  const auto [end, code] = std::from_chars(first, last, size);
  if (code != std::errc() || end != last)
    spec_error(
        fmt::format("data.tokenizer = \"{}\": bpe: needs the size of the vocabulary, as in "
                    "\"bpe:4096\"",
                    spec));
  if (size < kSmallestBpeVocabulary || size > kLargestBpeVocabulary)
    spec_error(
        fmt::format("data.tokenizer = \"{}\": the vocabulary must have {} (256 bytes and {}) to "
                    "{} tokens",
                    spec, kSmallestBpeVocabulary, kEndOfDocumentText, kLargestBpeVocabulary));
  return size;
}

std::unique_ptr<Tokenizer> ids_from_json(const Json& json) {
  const Json* end = json.find("end_of_document");
  std::optional<int32_t> token;
  if (end != nullptr)
    token = static_cast<int32_t>(std::clamp<int64_t>(end->as_integer(), -1, INT32_MAX));
  return std::make_unique<IdsTokenizer>(json.at("vocabulary").as_integer(), token);
}

}  // namespace

TextError::TextError(std::string before, size_t offset, std::string after)
    : UserError(fmt::format("{}{}{}", before, offset, after)),
      before_(std::move(before)),
      after_(std::move(after)),
      offset_(offset) {}

void Tokenizer::check_token(int32_t token) const {
  if (token < 0 || token >= vocabulary_size())
    throw UserError(fmt::format("token {} is out of range: the vocabulary has {} tokens, 0 to {}",
                                token, vocabulary_size(), vocabulary_size() - 1));
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) text += token_bytes(token);
  return text;
}

bool tokenizer_is_trained(const std::string& spec) { return spec.starts_with(kBpePrefix); }

namespace {

/// Nothing where no such file is there.
std::unique_ptr<Tokenizer> load_named(const std::string& path) {
  try {
    return path_exists(path) ? load_tokenizer(path) : nullptr;
  } catch (Error& error) {
    error.place().key = "data.tokenizer";
    throw;
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec, std::string_view text) {
  if (spec == "byte") return std::make_unique<ByteTokenizer>();
  if (spec == "char") return std::make_unique<CharTokenizer>(CharTokenizer::from_text(text));
  if (tokenizer_is_trained(spec)) {
    BpeTrainOptions options;
    options.vocabulary_size = bpe_vocabulary(spec);
    return std::make_unique<BpeTokenizer>(train_bpe(text, options));
  }
  if (names_ids(spec)) return std::make_unique<IdsTokenizer>(IdsTokenizer::from_spec(spec));
  if (auto loaded = load_named(spec)) return loaded;
  if (spec.find('/') != std::string::npos || spec.ends_with(".json"))
    spec_error(fmt::format("data.tokenizer: {} does not exist", spec));
  spec_error(
      fmt::format("data.tokenizer = \"{}\" is not known; did you mean \"{}\"? (choices: byte, "
                  "char, bpe:N, ids:N, or the path of a tokenizer.json)",
                  spec, nearest_choice(spec, kChoices)));
}

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json_text, const std::string& name) {
  ErrorPlace place;
  place.file = name;
  const Json json = Json::parse(json_text, name);
  try {
    const Json* format = json.find("format");
    if (format == nullptr && is_subword_json(json))
      return std::make_unique<SubwordTokenizer>(json, json_text);
    if (format == nullptr) return std::make_unique<BpeTokenizer>(bpe_from_json(json));
    if (format->as_string() != kTokenizerFormat)
      throw UserError(
          fmt::format("format \"{}\" is not known; this version reads \"{}\" and Hugging "
                      "Face tokenizer.json",
                      format->as_string(), kTokenizerFormat));
    const std::string& kind = json.at("kind").as_string();
    if (kind == "byte") return std::make_unique<ByteTokenizer>();
    if (kind == "char") return std::make_unique<CharTokenizer>(CharTokenizer::from_json(json));
    if (kind == "ids") return ids_from_json(json);
    throw UserError(fmt::format("kind \"{}\" is not known (choices: byte, char, ids)", kind));
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", name, error.what()), place);
  }
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  return parse_tokenizer(read_file(path), path);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& path) {
  write_file_atomically(path, tokenizer.serialize());
}

}  // namespace strait
