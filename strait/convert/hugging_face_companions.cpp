#include "strait/convert/hugging_face_companions.h"

#include "strait/base/json.h"

namespace strait::convert {
namespace {

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

}  // namespace strait::convert
