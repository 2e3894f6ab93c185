#include "strait/tokenizer/ids_tokenizer.h"

#include <fmt/format.h>

#include <charconv>

#include "strait/base/errors.h"
#include "strait/base/json.h"
#include "strait/tokenizer/bpe_model.h"
#include "strait/tokenizer/byte_tokenizer.h"

namespace strait {
namespace {

constexpr std::string_view kPrefix = "ids:";

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool leading_zero = text.size() > 1 && text[0] == '0';
  if (code != std::errc() || end != text.data() + text.size() || value < 0 || leading_zero)
    return std::nullopt;
  return value;
}

[[noreturn]] void refuse(const std::string& message) {
  ErrorPlace place;
  place.key = "data.tokenizer";
  throw UserError(message, place);
}

}  // namespace

bool names_ids(const std::string& spec) { return spec.starts_with(kPrefix); }

IdsTokenizer::IdsTokenizer(int64_t vocabulary, std::optional<int32_t> end_of_document)
    : vocabulary_(vocabulary), end_of_document_(end_of_document) {
  if (vocabulary < 1 || vocabulary > kLargestBpeVocabulary)
    refuse(fmt::format("a vocabulary of {} tokens: it must have 1 to {}", vocabulary,
                       kLargestBpeVocabulary));
  if (end_of_document && (*end_of_document < 0 || *end_of_document >= vocabulary))
    refuse(fmt::format("the end-of-document token {} is outside the vocabulary of {}",
                       *end_of_document, vocabulary));
  for (int64_t token = 0; token < vocabulary; ++token) texts_.push_back(fmt::format(" {}", token));
}

IdsTokenizer IdsTokenizer::from_spec(const std::string& spec) {
  const std::string_view rest = std::string_view(spec).substr(kPrefix.size());
  const size_t slash = rest.find('/');
  const auto vocabulary = number(rest.substr(0, slash));
  const auto end =
      slash == std::string_view::npos ? std::optional<int64_t>(-1) : number(rest.substr(slash + 1));
  if (!vocabulary || !end)
    refuse(fmt::format(
        "data.tokenizer = \"{}\": ids: needs the size of the vocabulary, as in \"ids:50257\", "
        "and may name the end-of-document token, as in \"ids:50257/50256\"",
        spec));
  if (*end < 0) return IdsTokenizer(*vocabulary);
  return IdsTokenizer(*vocabulary, static_cast<int32_t>(std::min<int64_t>(*end, INT32_MAX)));
}

std::vector<int32_t> IdsTokenizer::encode(std::string_view text, int) const {
  std::vector<int32_t> tokens;
  for (size_t position = 0; position < text.size();) {
    const size_t end = std::min(text.find(' ', position + 1), text.size());
    const auto value = number(text.substr(position + 1, end - position - 1));
    if (text[position] != ' ' || !value || *value >= vocabulary_)
      throw TextError(
          "at byte ", position,
          fmt::format(": with data.tokenizer = \"ids:{}\" a text is a space and a number from 0 to "
                      "{} for each token, as in \" 17 4\"",
                      vocabulary_, vocabulary_ - 1));
    tokens.push_back(static_cast<int32_t>(*value));
    position = end;
  }
  return tokens;
}

std::string_view IdsTokenizer::token_bytes(int32_t token) const {
  check_token(token);
  return texts_[static_cast<size_t>(token)];
}

std::string IdsTokenizer::serialize() const {
  Json json =
      Json::object({{"format", kTokenizerFormat}, {"kind", "ids"}, {"vocabulary", vocabulary_}});
  if (end_of_document_) json["end_of_document"] = *end_of_document_;
  return json.dump(1) + "\n";
}

}  // namespace strait
