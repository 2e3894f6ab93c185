#include "strait/tokenizer/subword/vocabulary.h"

#include <fmt/format.h>

#include "strait/base/errors.h"
#include "strait/tokenizer/subword/json_part.h"

namespace strait::subword {

Vocabulary::Vocabulary(const Json& json) {
  add_model(json.at("model").at("vocab"));
  if (const Json* added = json.find("added_tokens"); !absent(added)) add_added(*added);
  number_all();
  for (int byte = 0; byte < 256; ++byte)
    byte_tokens_[static_cast<size_t>(byte)] = find(fmt::format("<0x{:02X}>", byte));
}

void Vocabulary::add_model(const Json& vocabulary) {
  if (vocabulary.is_object()) {
    for (const auto& [text, number] : vocabulary.as_object())
      add(text, number.as_integer(), Kind::kOfModel);
    return;
  }
  int64_t number = 0;
  for (const Json& entry : vocabulary.as_array()) {
    const Json::Array& parts = entry.as_array();
    if (parts.size() != 2)
      throw UserError(fmt::format("model.vocab[{}] is no pair of a text and a score", number));
    add(parts[0].as_string(), number++, Kind::kOfModel);
  }
}

void Vocabulary::add_added(const Json& added) {
  for (const Json& entry : added.as_array()) {
    const std::string& text = entry.at("content").as_string();
    const bool special = flag_or(entry, "special", false);
    const std::string where = fmt::format("added_tokens \"{}\"", text);
    if (!special)
      for (const char* flag : {"normalized", "single_word", "lstrip", "rstrip"})
        require_flag(entry, where, flag, false);
    if (text.empty()) throw UserError("an added token is empty");
    add(text, entry.at("id").as_integer(), special ? Kind::kSpecial : Kind::kAdded);
  }
}

void Vocabulary::add(const std::string& text, int64_t number, Kind kind) {
  const auto [found, fresh] = entries_.emplace(text, Entry{number, kind});
  if (fresh) return;
  if (kind == Kind::kOfModel) throw UserError(fmt::format("token \"{}\" stands twice", text));
  if (found->second.number != number)
    throw UserError(fmt::format("the added token \"{}\" has two numbers, {} and {}", text,
                                found->second.number, number));
  found->second.kind = kind;
}

void Vocabulary::number_all() {
  texts_.resize(entries_.size());
  kinds_.resize(entries_.size());
  std::vector<bool> used(entries_.size());
  for (const auto& [text, entry] : entries_) {
    const auto number = static_cast<size_t>(entry.number);
    if (entry.number < 0 || number >= used.size())
      throw UserError(
          fmt::format("token \"{}\" has the number {}, but {} tokens must be numbered 0 to {}",
                      text, entry.number, used.size(), used.size() - 1));
    if (used[number]) throw UserError(fmt::format("two tokens have the number {}", number));
    used[number] = true;
    texts_[number] = text;
    kinds_[number] = entry.kind;
  }
}

int32_t Vocabulary::find(std::string_view text) const {
  const auto found = entries_.find(std::string(text));
  return found == entries_.end() ? -1 : static_cast<int32_t>(found->second.number);
}

bool Vocabulary::append_bytes(std::string_view text, std::vector<int32_t>& out) const {
  const size_t before = out.size();
  for (const char byte : text) out.push_back(byte_token(static_cast<uint8_t>(byte)));
  for (size_t i = before; i < out.size(); ++i)
    if (out[i] < 0) {
      out.resize(before);
      return false;
    }
  return true;
}

}  // namespace strait::subword
