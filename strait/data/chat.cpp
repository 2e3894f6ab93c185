#include "strait/data/chat.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "strait/base/errors.h"

namespace strait {
namespace {

constexpr std::string_view kStart = "<|im_start|>", kEnd = "<|im_end|>";

[[noreturn]] void refuse(size_t number, const std::string& what) {
  throw UserError(fmt::format("message {} {}", number, what));
}

const std::string& member(const Json& message, const char* name, size_t number) {
  if (!message.is_object()) refuse(number, "is no JSON object");
  const Json* value = message.find(name);
  if (value == nullptr) refuse(number, fmt::format("has no member \"{}\"", name));
  if (!value->is_string()) refuse(number, fmt::format("has a \"{}\" that is no string", name));
  for (const std::string_view mark : {kStart, kEnd})
    if (value->as_string().find(mark) != std::string::npos)
      refuse(number,
             fmt::format("has a \"{}\" that spells {}, a mark of the template", name, mark));
  return value->as_string();
}

}  // namespace

std::string chat_text(const Json& messages) {
  std::string text;
  size_t number = 0;
  for (const Json& message : messages.as_array()) {
    const std::string& role = member(message, "role", ++number);
    if (role.empty() || role.find('\n') != std::string::npos)
      refuse(number, "has a \"role\" that is not one line");
    text += fmt::format("{}{}\n{}{}\n", kStart, role, member(message, "content", number), kEnd);
  }
  return text;
}

}  // namespace strait
