#include "strait/convert/hugging_face_companions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/convert/hidden_folder.h"

namespace strait::convert {
namespace {

namespace fs = std::filesystem;

/// Files as transformers 5 writes and reads them; added_tokens.json, vocab.json and what follows
/// are those of older versions.
constexpr std::array kCarried = {"generation_config.json",
                                 "tokenizer_config.json",
                                 "special_tokens_map.json",
                                 "chat_template.jinja",
                                 "chat_template.json",
                                 "added_tokens.json",
                                 "vocab.json",
                                 "merges.txt",
                                 "tokenizer.model"};
constexpr uint64_t kMostBytes = uint64_t{64} << 20;  // Llama 2's tokenizer.model has half of one

/// Text of a special token as tokenizer.json lists it; null where it does not.
Json content_of(const Json& tokenizer, int64_t id) {
  const Json* added = tokenizer.find("added_tokens");
  if (added == nullptr || !added->is_array()) return {};
  for (const Json& token : added->as_array())
    if (token.at("id").as_integer() == id) return token.at("content");
  return {};
}

std::string text_of(const Json& json) { return json.dump(2) + "\n"; }

}  // namespace

std::vector<std::pair<std::string, std::string>> companion_files(const ShapeOptions& shape,
                                                                 const std::string& tokenizer_json,
                                                                 int64_t end_of_document) {
  const Json content = content_of(Json::parse(tokenizer_json, "tokenizer.json"), end_of_document);
  const Json end = end_of_document < 0 ? Json() : Json(end_of_document);
  Json tokenizer = Json::object({{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"model_max_length", shape.context},
                                 {"clean_up_tokenization_spaces", false}});
  Json special = Json::object();
  if (!content.is_null()) tokenizer["eos_token"] = special["eos_token"] = content;
  const Json generation = Json::object({{"_from_model_config", true}, {"eos_token_id", end}});
  return {{"generation_config.json", text_of(generation)},
          {"tokenizer_config.json", text_of(tokenizer)},
          {"special_tokens_map.json", text_of(special)}};
}

bool is_companion(const std::string& name) {
  return std::find(kCarried.begin(), kCarried.end(), name) != kCarried.end();
}

std::map<std::string, std::string> read_companions(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const char* name : kCarried) {
    const std::string path = folder + "/" + name;
    std::error_code none;
    if (!fs::exists(path, none)) continue;
    if (fs::is_regular_file(path, none) && fs::file_size(path, none) > kMostBytes) {
      ErrorPlace place;
      place.file = path;
      throw UserError(fmt::format("{} has {} bytes; the most that is carried along is {}", path,
                                  fs::file_size(path, none), kMostBytes),
                      place);
    }
    files[name] = read_file(path);
  }
  return files;
}

std::string companions_folder(const std::string& run_dir) { return run_dir + "/hugging_face"; }

std::string companions_beside(const std::string& checkpoint) {
  const fs::path step = without_slash(fs::absolute(checkpoint));
  return companions_folder(step.parent_path().parent_path().string());
}

}  // namespace strait::convert
