#include "strait/tokenizer/bpe_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>

#include "strait/base/errors.h"
#include "strait/tokenizer/byte_alphabet.h"
#include "strait/tokenizer/subword/json_part.h"

namespace strait {
namespace {

using Ids = std::unordered_map<std::string, int32_t>;

using subword::absent;
using subword::require_flag;
using subword::type_of;
using subword::unsupported;

void require_nothing(const Json& json, const char* part) {
  const Json* found = json.find(part);
  if (!absent(found)) unsupported(part, type_of(*found), "none (null)");
}

/// Whether text is brought into normal form C.
bool read_normalizer(const Json& json) {
  const Json* found = json.find("normalizer");
  if (absent(found)) return false;
  if (type_of(*found) != "NFC") unsupported("normalizer", type_of(*found), "NFC, or none (null)");
  return true;
}

void check_decoder(const Json& json) {
  const Json* found = json.find("decoder");
  if (!absent(found) && type_of(*found) != "ByteLevel")
    unsupported("decoder", type_of(*found), "ByteLevel, or none");
}

/// TemplateProcessing that puts special tokens around the text.
void check_template(const Json& json) {
  const Json* single = json.find("single");
  int64_t sequences = 0;
  if (!absent(single))
    for (const Json& piece : single->as_array())
      if (piece.find("SpecialToken") == nullptr) ++sequences;
  if (sequences != 1)
    throw UserError(
        "post_processor.TemplateProcessing.single is not supported; supported: one sequence and "
        "special tokens");
}

void check_post_processor(const Json& part) {
  const std::string type = type_of(part);
  if (type == "Sequence") {
    for (const Json& one : part.at("processors").as_array()) check_post_processor(one);
  } else if (type == "TemplateProcessing") {
    check_template(part);
  } else if (type != "ByteLevel") {
    unsupported("post_processor", type,
                "ByteLevel, TemplateProcessing, a Sequence of them, or none");
  }
}

void check_byte_level(const Json& part, bool use_regex) {
  const Json* prefix = part.find("add_prefix_space");
  if (absent(prefix))
    throw UserError("pre_tokenizer.add_prefix_space is missing; supported: false");
  require_flag(part, "pre_tokenizer", "add_prefix_space", false);
  const Json* regex = part.find("use_regex");  // absent: true
  if ((absent(regex) || regex->as_bool()) != use_regex)
    throw UserError(
        fmt::format("pre_tokenizer.use_regex = {} is not supported {} a Split; "
                    "supported: {}",
                    !use_regex, use_regex ? "without" : "behind", use_regex));
}

SplitKind kind_of_split(const Json& part) {
  const Json* pattern = part.find("pattern");
  const Json* regex = absent(pattern) ? nullptr : pattern->find("Regex");
  const std::string text = absent(regex) ? "(without a Regex)" : regex->as_string();
  const Json* behavior = part.find("behavior");
  if (absent(behavior) || behavior->as_string() != "Isolated")
    throw UserError(
        fmt::format("pre_tokenizer.Split.behavior {} is not supported; supported: "
                    "\"Isolated\"",
                    absent(behavior) ? "null" : behavior->dump()));
  require_flag(part, "pre_tokenizer.Split", "invert", false);
  for (const SplitKind kind : {SplitKind::kGpt2, SplitKind::kLlama3, SplitKind::kQwen2})
    if (text == split_regex(kind)) return kind;
  unsupported("pre_tokenizer.Split.pattern", text, "GPT-2's, Llama 3's and Qwen 2's");
}

SplitKind kind_of_digits(const Json& part) {
  if (!subword::flag_or(part, "individual_digits", false))
    throw UserError(
        "pre_tokenizer.Digits.individual_digits = false is not supported before ByteLevel; "
        "supported: true");
  return SplitKind::kGpt2Digits;
}

/// ByteLevel alone, or a Sequence of Split or Digits and ByteLevel.
SplitKind read_pre_tokenizer(const Json& json) {
  const Json* found = json.find("pre_tokenizer");
  const std::string type = absent(found) ? "null" : type_of(*found);
  constexpr const char* kSupported =
      "ByteLevel, or a Sequence of Split and ByteLevel, or of Digits and ByteLevel";
  if (type == "ByteLevel") {
    check_byte_level(*found, true);
    return SplitKind::kGpt2;
  }
  if (type != "Sequence") unsupported("pre_tokenizer", type, kSupported);
  const Json::Array& parts = found->at("pretokenizers").as_array();
  std::string types;
  for (const Json& part : parts) types += (types.empty() ? "" : ", ") + type_of(part);
  const bool digits = types == "Digits, ByteLevel";
  if (!digits && types != "Split, ByteLevel")
    unsupported("pre_tokenizer", "Sequence of " + types, kSupported);
  check_byte_level(parts[1], digits);
  return digits ? kind_of_digits(parts[0]) : kind_of_split(parts[0]);
}

void check_model_options(const Json& model) {
  const Json* type = model.find("type");
  if (!absent(type) && type->as_string() != "BPE")
    throw UserError(fmt::format("model \"{}\" is not supported; supported: BPE, Unigram, WordPiece",
                                type->as_string()));
  subword::require_empty(model, "model", "continuing_subword_prefix");
  subword::require_empty(model, "model", "end_of_word_suffix");
  const Json* dropout = model.find("dropout");
  if (!absent(dropout) && dropout->as_number() != 0)
    throw UserError("model.dropout is not supported; supported: null");
  require_flag(model, "model", "byte_fallback", false);
}

void check_parts(const Json& json) {
  if (!json.is_object()) throw UserError("not a tokenizer: the file is not a JSON object");
  if (json.find("model") == nullptr)
    throw UserError(
        "not a tokenizer: it has neither \"model\" (Hugging Face tokenizer.json) nor \"format\"");
  read_normalizer(json);
  if (const Json* part = json.find("post_processor"); !absent(part)) check_post_processor(*part);
  check_decoder(json);
  require_nothing(json, "truncation");
  require_nothing(json, "padding");
  check_model_options(json.at("model"));
}

/// The id of a token; ids of n tokens are 0 .. n - 1, each once.
int32_t checked_id(const Json& id, const std::string& token, size_t tokens) {
  if (id.as_integer() < 0 || id.as_integer() >= static_cast<int64_t>(tokens))
    throw UserError(
        fmt::format("token \"{}\" has the number {}, but {} tokens must be numbered 0 to {}", token,
                    id.as_integer(), tokens, tokens - 1));
  return static_cast<int32_t>(id.as_integer());
}

/// A token that text becomes as a whole. Whatever the flags, text never becomes a special one.
void check_added(const Json& entry, const std::string& content, bool nfc) {
  const std::string where = fmt::format("added_tokens \"{}\"", content);
  if (content.empty()) throw UserError("an added token is empty");
  for (const char* flag : {"single_word", "lstrip", "rstrip"})
    require_flag(entry, where, flag, false);
  if (nfc) require_flag(entry, where, "normalized", false);
}

/// Number of each token as it is written in the file; fills special_tokens, added_tokens and
/// end_of_document.
Ids read_ids(const Json& json, BpeModel& model) {
  const Json::Object& vocabulary = json.at("model").at("vocab").as_object();
  std::vector<std::pair<std::string, const Json*>> entries;
  Ids ids;
  for (const auto& [token, id] : vocabulary) {
    entries.emplace_back(token, &id);
    ids.emplace(token, -1);
  }
  const Json* added = json.find("added_tokens");
  std::vector<std::string> special, whole;
  if (!absent(added)) {
    for (const Json& entry : added->as_array()) {
      const std::string& content = entry.at("content").as_string();
      const bool is_special = subword::flag_or(entry, "special", false);
      if (!is_special) check_added(entry, content, model.nfc);
      (is_special ? special : whole).push_back(content);
      if (ids.emplace(content, -1).second) {
        entries.emplace_back(content, &entry.at("id"));
      } else if (const Json* id = json.at("model").at("vocab").find(content);
                 id == nullptr || id->as_integer() != entry.at("id").as_integer()) {
        throw UserError(fmt::format("the added token \"{}\" has two numbers", content));
      }
    }
  }
  std::vector<bool> used(entries.size());
  for (const auto& [token, id] : entries) {
    const int32_t number = checked_id(*id, token, entries.size());
    if (used[number]) throw UserError(fmt::format("two tokens have the number {}", number));
    used[number] = true;
    ids[token] = number;
  }
  for (const std::string& token : special) model.special_tokens.push_back(ids[token]);
  for (const std::string& token : whole) model.added_tokens.push_back(ids[token]);
  std::ranges::sort(model.special_tokens);
  std::ranges::sort(model.added_tokens);
  for (const char* end : {kLlamaEndOfDocumentText, kEndOfDocumentText})
    if (std::find(special.begin(), special.end(), end) != special.end())
      model.end_of_document = ids[end];
  return ids;
}

/// Special and added tokens are written as their text, the others in the byte-level alphabet.
bool is_written_plainly(const BpeModel& model, int32_t token) {
  return std::ranges::binary_search(model.special_tokens, token) ||
         std::ranges::binary_search(model.added_tokens, token);
}

void read_tokens(const Ids& ids, BpeModel& model) {
  model.tokens.resize(ids.size());
  for (const auto& [token, id] : ids) {
    if (is_written_plainly(model, id)) {
      model.tokens[id] = token;
      continue;
    }
    const auto bytes = visible_to_bytes(token);
    if (!bytes || bytes->empty())
      throw UserError(
          fmt::format("token {} (\"{}\") is not written in the byte-level alphabet", id, token));
    model.tokens[id] = *bytes;
  }
}

void read_merges(const Json& json, const Ids& ids, BpeModel& model) {
  const auto id_of = [&](const std::string& token, size_t index) {
    const auto found = ids.find(token);
    if (found == ids.end())
      throw UserError(fmt::format("merge {} needs the token \"{}\", which is not in the vocabulary",
                                  index, token));
    return found->second;
  };
  for (const Json& merge : json.at("model").at("merges").as_array()) {
    const size_t index = model.merges.size();
    const auto [left, right] = subword::pair_of_merge(merge, index);
    model.merges.push_back({id_of(left, index), id_of(right, index), id_of(left + right, index)});
  }
}

std::string quoted(const std::string& text) { return Json(text).dump(); }

/// How a token is spelled in the file.
std::string spelling(const BpeModel& model, int32_t token) {
  return is_written_plainly(model, token) ? model.tokens[token]
                                          : bytes_to_visible(model.tokens[token]);
}

Json added_tokens_json(const BpeModel& model) {
  std::map<int32_t, bool> tokens;  // and whether they are special
  for (const int32_t token : model.added_tokens) tokens[token] = false;
  for (const int32_t token : model.special_tokens) tokens[token] = true;
  Json added = Json::array();
  for (const auto& [token, special] : tokens)
    added.push_back(Json::object({{"id", token},
                                  {"content", model.tokens[token]},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false},
                                  {"special", special}}));
  return added;
}

/// The "pre_tokenizer" object.
Json pre_tokenizer_json(SplitKind kind) {
  const auto byte_level = [](bool use_regex) {
    return Json::object({{"type", "ByteLevel"},
                         {"add_prefix_space", false},
                         {"trim_offsets", true},
                         {"use_regex", use_regex}});
  };
  const auto sequence = [](Json first, Json second) {
    return Json::object({{"type", "Sequence"},
                         {"pretokenizers", Json::Array{std::move(first), std::move(second)}}});
  };
  if (kind == SplitKind::kGpt2) return byte_level(true);
  if (kind == SplitKind::kGpt2Digits)
    return sequence(Json::object({{"type", "Digits"}, {"individual_digits", true}}),
                    byte_level(true));
  const Json split =
      Json::object({{"type", "Split"},
                    {"pattern", Json::object({{"Regex", std::string(split_regex(kind))}})},
                    {"behavior", "Isolated"},
                    {"invert", false}});
  return sequence(split, byte_level(false));
}

/// The "model" object. Written by hand because a Json object would be searched for every new key.
std::string model_json(const BpeModel& model) {
  std::string out =
      "{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
      "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n";
  if (model.ignore_merges) out += "    \"ignore_merges\": true,\n";
  out += "    \"vocab\": {";
  for (size_t i = 0; i < model.tokens.size(); ++i)
    out += fmt::format("{}\n      {}: {}", i == 0 ? "" : ",",
                       quoted(spelling(model, static_cast<int32_t>(i))), i);
  out += "\n    },\n    \"merges\": [";
  for (size_t i = 0; i < model.merges.size(); ++i)
    out += fmt::format("{}\n      {}", i == 0 ? "" : ",",
                       quoted(spelling(model, model.merges[i].left) + " " +
                              spelling(model, model.merges[i].right)));
  return out + "\n    ]\n  }";
}

}  // namespace

BpeModel bpe_from_json(const Json& json) {
  check_parts(json);
  BpeModel model;
  model.nfc = read_normalizer(json);
  const Ids ids = read_ids(json, model);
  read_tokens(ids, model);
  read_merges(json, ids, model);
  model.split = read_pre_tokenizer(json);
  const Json *ignore = json.at("model").find("ignore_merges"), *post = json.find("post_processor");
  model.ignore_merges = !absent(ignore) && ignore->as_bool();
  if (!absent(post)) model.post_processor = post->dump();
  return model;
}

std::string bpe_to_json(const BpeModel& model) {
  const Json byte_level = Json::object({{"type", "ByteLevel"},
                                        {"add_prefix_space", false},
                                        {"trim_offsets", true},
                                        {"use_regex", true}});
  std::string out = "{\n";
  const auto part = [&](const char* key, const std::string& value) {
    out += fmt::format("  \"{}\": {},\n", key, value);
  };
  part("version", "\"1.0\"");
  part("truncation", "null");
  part("padding", "null");
  part("added_tokens", added_tokens_json(model).dump());
  part("normalizer", model.nfc ? "{\"type\": \"NFC\"}" : "null");
  part("pre_tokenizer", pre_tokenizer_json(model.split).dump());
  part("post_processor", model.post_processor.empty() ? "null" : model.post_processor);
  part("decoder", byte_level.dump());
  return out + "  \"model\": " + model_json(model) + "\n}\n";
}

}  // namespace strait
