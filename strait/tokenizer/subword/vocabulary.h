// The tokens of a tokenizer.json: those of its model and those that were added.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "strait/base/json.h"

namespace strait::subword {

class Vocabulary {
 public:
  /// model.vocab (an object, or Unigram's array of [text, score]) and added_tokens. UserError
  /// naming a token that is double, or whose number is no member of 0 .. n - 1, and an added token
  /// that is neither special nor plain (normalized, single_word, lstrip, rstrip).
  explicit Vocabulary(const Json& json);

  int32_t size() const { return static_cast<int32_t>(texts_.size()); }
  /// As the file writes it.
  const std::string& text(int32_t token) const { return texts_[static_cast<size_t>(token)]; }
  /// Never made from text.
  bool is_special(int32_t token) const { return kind(token) == Kind::kSpecial; }
  /// Looked for in text before anything else.
  bool is_added(int32_t token) const { return kind(token) == Kind::kAdded; }
  /// The token that is written `text`, special or not, or -1.
  int32_t find(std::string_view text) const;
  /// The token "<0x0A>" of byte 10, and so on, or -1.
  int32_t byte_token(uint8_t byte) const { return byte_tokens_[byte]; }

  /// Appends the tokens of all bytes of `text`; false, and nothing, where one has none.
  bool append_bytes(std::string_view text, std::vector<int32_t>& out) const;

 private:
  enum class Kind : uint8_t { kOfModel, kAdded, kSpecial };
  Kind kind(int32_t token) const { return kinds_[static_cast<size_t>(token)]; }
  void add_model(const Json& vocabulary);
  void add_added(const Json& added);
  /// Takes up a token; its number is looked at in `number_all`.
  void add(const std::string& text, int64_t number, Kind kind);
  void number_all();

  struct Entry {
    int64_t number;
    Kind kind;
  };
  std::unordered_map<std::string, Entry> entries_;
  std::vector<std::string> texts_;
  std::vector<Kind> kinds_;
  std::array<int32_t, 256> byte_tokens_{};
};

}  // namespace strait::subword
