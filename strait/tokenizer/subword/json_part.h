// Parts of a tokenizer.json: what is there, and refusals that name the member.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "strait/base/json.h"

namespace strait::subword {

/// Missing or null.
bool absent(const Json* part);

/// The member "type", or a text that says that there is none.
std::string type_of(const Json& part);

/// UserError: `part` is `found`, which is not among `supported`.
[[noreturn]] void unsupported(const std::string& part, const std::string& found,
                              const char* supported);

/// The member `key` of `json`, or `fallback` where it is absent. UserError of another type.
bool flag_or(const Json& json, const char* key, bool fallback);
std::string text_or(const Json& json, const char* key, const std::string& fallback);

/// A flag of `json` that must have the value `wanted`, which is also what its absence means.
void require_flag(const Json& json, const std::string& part, const char* key, bool wanted);

/// A text of `json` that must be empty or absent.
void require_empty(const Json& json, const std::string& part, const char* key);

/// The two tokens of merge number `index`: "a b" or ["a", "b"].
std::pair<std::string, std::string> pair_of_merge(const Json& merge, size_t index);

}  // namespace strait::subword
