#include "strait/tokenizer/subword_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "strait/base/errors.h"
#include "strait/tokenizer/bpe_model.h"
#include "strait/tokenizer/subword/decoder.h"
#include "strait/tokenizer/subword/json_part.h"
#include "strait/tokenizer/subword/model.h"
#include "strait/tokenizer/subword/normalizer.h"
#include "strait/tokenizer/subword/pre_tokenizer.h"
#include "strait/tokenizer/subword/sorted_pieces.h"
#include "strait/tokenizer/utf8.h"

namespace strait {

using subword::absent;

namespace {

/// Special tokens that end a document, the first that is there: of GPT-2 and Llama 3, of
/// SentencePiece, Gemma and BERT.
constexpr std::array kEndTexts = {kEndOfDocumentText, kLlamaEndOfDocumentText, "</s>", "<eos>",
                                  "[SEP]"};

std::optional<int32_t> find_end(const subword::Vocabulary& vocabulary) {
  for (const char* text : kEndTexts)
    if (const int32_t token = vocabulary.find(text); token >= 0 && vocabulary.is_special(token))
      return token;
  return std::nullopt;
}

std::vector<subword::SortedPieces::Entry> added_tokens(const subword::Vocabulary& vocabulary) {
  std::vector<subword::SortedPieces::Entry> entries;
  for (int32_t token = 0; token < vocabulary.size(); ++token)
    if (vocabulary.is_added(token)) entries.emplace_back(vocabulary.text(token), token);
  return entries;
}

/// `Part` of the member `key`, or one that does nothing.
template <class Part>
Part part_of(const Json& json, const char* key) {
  const Json* found = json.find(key);
  return absent(found) ? Part() : Part(*found);
}

bool is_byte_level(const Json* part) {
  if (absent(part)) return false;
  const std::string type = subword::type_of(*part);
  if (type != "Sequence") return type == "ByteLevel";
  for (const char* list : {"pretokenizers", "decoders"})
    if (const Json* parts = part->find(list); parts != nullptr)
      for (const Json& one : parts->as_array())
        if (is_byte_level(&one)) return true;
  return false;
}

void check_utf8(std::string_view text) {
  const size_t bad = first_invalid_utf8(text);
  if (bad < text.size())
    throw TextError(
        "byte ", bad,
        fmt::format(" of the text (0x{:02x}) is not UTF-8, which this tokenizer needs; set "
                    "data.encoding to the encoding of the text",
                    static_cast<uint8_t>(text[bad])));
}

}  // namespace

struct SubwordTokenizer::Parts {
  explicit Parts(const Json& json)
      : vocabulary(json),
        added(added_tokens(vocabulary)),
        normalizer(part_of<subword::Normalizer>(json, "normalizer")),
        pre_tokenizer(part_of<subword::PreTokenizer>(json, "pre_tokenizer")),
        model(subword::make_model(json.at("model"), vocabulary)) {}

  subword::Vocabulary vocabulary;
  subword::SortedPieces added;
  subword::Normalizer normalizer;
  subword::PreTokenizer pre_tokenizer;
  std::unique_ptr<subword::Model> model;
};

SubwordTokenizer::SubwordTokenizer(const Json& json, std::string_view text)
    : text_(text), parts_(std::make_unique<const Parts>(json)) {
  const std::string type = subword::type_of(json.at("model"));
  kind_ = type == "Unigram" ? "unigram" : type == "WordPiece" ? "wordpiece" : "bpe";
  token_texts_ = subword::token_texts(json.find("decoder"), parts_->vocabulary);
  end_of_document_ = find_end(parts_->vocabulary);
}

SubwordTokenizer::~SubwordTokenizer() = default;

int64_t SubwordTokenizer::vocabulary_size() const { return parts_->vocabulary.size(); }

std::string_view SubwordTokenizer::token_bytes(int32_t token) const {
  check_token(token);
  return token_texts_[static_cast<size_t>(token)];
}

void SubwordTokenizer::encode_stretch(std::string_view text, bool at_start,
                                      std::vector<int32_t>& out) const {
  if (text.empty()) return;
  const std::string normalized = parts_->normalizer.apply(std::string(text));
  for (const subword::Piece& piece : parts_->pre_tokenizer.apply(normalized, at_start))
    parts_->model->append(piece.text, out);
}

std::vector<int32_t> SubwordTokenizer::encode(std::string_view text, int /*threads*/) const {
  check_utf8(text);
  std::vector<int32_t> tokens;
  parts_->added.cut(
      text,
      [&](std::string_view stretch) {
        encode_stretch(stretch, stretch.data() == text.data(), tokens);
      },
      [&](int32_t token) { tokens.push_back(token); });
  return tokens;
}

bool is_subword_json(const Json& json) {
  const Json* model = json.is_object() ? json.find("model") : nullptr;
  if (model == nullptr || !model->is_object()) return false;
  const std::string type = subword::type_of(*model);
  if (type == "Unigram" || type == "WordPiece") return true;
  const Json *cut = json.find("pre_tokenizer"), *decoder = json.find("decoder");
  if (type != "BPE" || is_byte_level(cut) || is_byte_level(decoder)) return false;
  return subword::flag_or(*model, "byte_fallback", false) ||
         (!absent(cut) && subword::type_of(*cut) == "Metaspace");
}

}  // namespace strait
