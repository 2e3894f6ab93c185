#include "strait/convert/hugging_face_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strait/base/errors.h"
#include "strait/config/keys.h"
#include "strait/convert/hugging_face_family.h"

namespace strait::convert {

void ForeignConfig::refuse(const char* key, const std::string& what) const {
  ErrorPlace place;
  place.file = path_;
  const std::string name = inside_.empty() ? key : inside_ + "." + key;
  place.key = name;
  throw UserError(fmt::format("{}: {} {}", path_, name, what), place);
}

const Json* ForeignConfig::find(const char* key) const {
  const Json* found = json_.find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

int64_t ForeignConfig::integer(const char* key, int64_t otherwise, const char* ours) const {
  const Json* found = find(key);
  if (found == nullptr) return otherwise;
  if (!found->is_integer() || found->as_integer() < 1)
    refuse(key, fmt::format("is {}, not a size", found->dump()));
  const auto most = static_cast<int64_t>(find_key(ours)->rule.most);
  if (found->as_integer() > most)
    refuse(key, fmt::format("is {}; our model has at most {}", found->as_integer(), most));
  return found->as_integer();
}

const Json* ForeignConfig::object(const char* key) const {
  const Json* found = find(key);
  if (found != nullptr && !found->is_object())
    refuse(key, fmt::format("is {}, not an object", found->dump()));
  return found;
}

double ForeignConfig::number(const char* key, double otherwise, const char* ours) const {
  const Json* found = find(key);
  if (found == nullptr) return otherwise;
  if (!found->is_number()) refuse(key, fmt::format("is {}, not a number", found->dump()));
  const double value = found->as_number();
  const Rule& rule = find_key(ours)->rule;
  if (!rule.contains(value))
    refuse(key, fmt::format("is {}; {} may be {}", value, ours, rule_text(rule)));
  return value;
}

double ForeignConfig::positive(const char* key, double otherwise, const char* ours) const {
  const double value = number(key, otherwise, ours);
  if (!(value > 0.0)) refuse(key, fmt::format("is {}, not above 0", value));
  return value;
}

bool ForeignConfig::flag(const char* key, bool otherwise) const {
  const Json* found = find(key);
  if (found == nullptr) return otherwise;
  if (!found->is_bool()) refuse(key, fmt::format("is {}, not true or false", found->dump()));
  return found->as_bool();
}

void ForeignConfig::require_flag(const char* key, bool wanted) const {
  if (flag(key, wanted) != wanted)
    refuse(key, fmt::format("is {}; our model computes {} only", !wanted, wanted));
}

int64_t ForeignFamily::vocabulary_rows(const Json& config, const std::string& path) const {
  const ForeignConfig members(config, path);
  return members.find("vocab_size") == nullptr
             ? 0
             : members.integer("vocab_size", 1, "model.shape.vocabulary");
}

const ForeignFamily& foreign_family(const std::string& family) {
  if (family == "gpt2") return gpt2_family();
  const ForeignFamily* rotary = rotary_family(family);
  ensure(rotary != nullptr, "a family that Hugging Face's form does not know");
  return *rotary;
}

std::string family_of_config(const Json& json, const std::string& path,
                             std::vector<std::string>& notes) {
  const ForeignConfig config(json, path);
  if (!json.is_object()) config.refuse("model_type", "is missing: the file is no JSON object");
  const Json* type = json.find("model_type");
  std::vector<std::string> known;
  for (const std::string& family : family_names()) {
    known.push_back(foreign_family(family).model_type());
    if (type != nullptr && type->dump() == Json(known.back()).dump()) return family;
  }
  const std::string supported = fmt::format("supported: \"{}\"", fmt::join(known, "\", \""));
  if (type != nullptr)
    config.refuse("model_type", fmt::format("is {}; {}", type->dump(), supported));
  if (config.find("n_layer") == nullptr || config.find("n_embd") == nullptr)
    config.refuse("model_type",
                  fmt::format("is missing, as is n_layer or n_embd, by which GPT-2's files without "
                              "it are known; {}",
                              supported));
  notes.push_back("config.json has no model_type; its n_layer and n_embd are read as GPT-2's");
  return "gpt2";
}

}  // namespace strait::convert
