#include "strait/tokenizer/subword/decoder.h"

#include <fmt/format.h>

#include <functional>

#include "strait/base/errors.h"
#include "strait/tokenizer/subword/json_part.h"
#include "strait/tokenizer/subword/normalizer.h"

namespace strait::subword {
namespace {

using Step = std::function<std::string(int32_t token, std::string text)>;
using Steps = std::vector<Step>;

constexpr const char* kSupported =
    "Metaspace, WordPiece, Replace of a String, ByteFallback, Fuse, Strip, a Sequence of them, or "
    "none";

Step replace_step(std::string from, std::string to) {
  return [from = std::move(from), to = std::move(to)](int32_t, std::string text) {
    return replaced(text, from, to);
  };
}

Step word_step(const std::string& prefix) {
  return [prefix](int32_t, std::string text) {
    return text.starts_with(prefix) ? text.substr(prefix.size()) : " " + text;
  };
}

Step byte_step(const Vocabulary& vocabulary) {
  return [&vocabulary](int32_t token, std::string text) {
    if (!text.starts_with("<0x")) return text;
    for (int byte = 0; byte < 256; ++byte)
      if (vocabulary.byte_token(static_cast<uint8_t>(byte)) == token)
        return std::string(1, static_cast<char>(byte));
    return text;
  };
}

/// A text of `part` that is not empty.
std::string needed_text(const Json& part, const char* key, const std::string& where) {
  const std::string text = part.at(key).as_string();
  if (text.empty()) throw UserError(fmt::format("{}.{} is empty", where, key));
  return text;
}

void add_steps(const Json& part, const std::string& where, const Vocabulary& vocabulary,
               Steps& steps) {
  const std::string type = type_of(part);
  if (type == "Sequence") {
    const Json::Array& parts = part.at("decoders").as_array();
    for (size_t i = 0; i < parts.size(); ++i)
      add_steps(parts[i], fmt::format("{}.decoders[{}]", where, i), vocabulary, steps);
  } else if (type == "Metaspace") {
    steps.push_back(replace_step(needed_text(part, "replacement", where), " "));
  } else if (type == "Replace" && part.at("pattern").find("String") != nullptr) {
    steps.push_back(replace_step(needed_text(part.at("pattern"), "String", where + ".pattern"),
                                 part.at("content").as_string()));
  } else if (type == "WordPiece") {
    steps.push_back(word_step(text_or(part, "prefix", "##")));
  } else if (type == "ByteFallback") {
    steps.push_back(byte_step(vocabulary));
  } else if (type != "Fuse" && type != "Strip") {
    unsupported(where, type, kSupported);
  }
}

}  // namespace

std::vector<std::string> token_texts(const Json* decoder, const Vocabulary& vocabulary) {
  Steps steps;
  if (!absent(decoder)) add_steps(*decoder, "decoder", vocabulary, steps);
  std::vector<std::string> texts;
  for (int32_t token = 0; token < vocabulary.size(); ++token) {
    std::string text = vocabulary.text(token);
    const size_t original = text.size();
    if (!vocabulary.is_special(token) && !vocabulary.is_added(token))
      for (const Step& step : steps) {
        text = step(token, std::move(text));
        check_growth(original, text.size());
      }
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace strait::subword
