#include "strait/tokenizer/subword/json_part.h"

#include <fmt/format.h>

#include "strait/base/errors.h"

namespace strait::subword {

bool absent(const Json* part) { return part == nullptr || part->is_null(); }

std::string type_of(const Json& part) {
  const Json* type = part.is_object() ? part.find("type") : nullptr;
  return type != nullptr && type->is_string() ? type->as_string() : "(without a type)";
}

void unsupported(const std::string& part, const std::string& found, const char* supported) {
  throw UserError(fmt::format("{} \"{}\" is not supported; supported: {}", part, found, supported));
}

bool flag_or(const Json& json, const char* key, bool fallback) {
  const Json* found = json.find(key);
  return absent(found) ? fallback : found->as_bool();
}

std::string text_or(const Json& json, const char* key, const std::string& fallback) {
  const Json* found = json.find(key);
  return absent(found) ? fallback : found->as_string();
}

void require_flag(const Json& json, const std::string& part, const char* key, bool wanted) {
  if (flag_or(json, key, wanted) != wanted)
    throw UserError(
        fmt::format("{}.{} = {} is not supported; supported: {}", part, key, !wanted, wanted));
}

void require_empty(const Json& json, const std::string& part, const char* key) {
  const std::string found = text_or(json, key, "");
  if (!found.empty())
    throw UserError(
        fmt::format("{}.{} = \"{}\" is not supported; supported: \"\"", part, key, found));
}

std::pair<std::string, std::string> pair_of_merge(const Json& merge, size_t index) {
  if (merge.is_array()) {
    const Json::Array& parts = merge.as_array();
    if (parts.size() == 2) return {parts[0].as_string(), parts[1].as_string()};
  } else {
    const std::string& text = merge.as_string();
    const size_t space = text.find(' ');
    if (space != std::string::npos) return {text.substr(0, space), text.substr(space + 1)};
  }
  throw UserError(fmt::format("merge {} is not a pair; write \"a b\" or [\"a\", \"b\"]", index));
}

}  // namespace strait::subword
