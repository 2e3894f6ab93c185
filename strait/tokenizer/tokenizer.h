// Text <-> tokens: the interface of all tokenizers, and how one is made, saved and loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strait/base/errors.h"

namespace strait {

/// Text that a tokenizer cannot express, from a byte offset on that the message holds. Who encodes
/// a part of a text moves it.
class TextError : public UserError {
 public:
  /// The message: `before`, the offset, `after`.
  TextError(std::string before, size_t offset, std::string after);
  size_t offset() const { return offset_; }
  /// The same at another offset, without a place.
  TextError at(size_t offset) const { return {before_, offset, after_}; }

 private:
  std::string before_, after_;
  size_t offset_;
};

/// Immutable once made; every method is thread-safe. Tokens are 0 .. vocabulary_size() - 1.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// "byte", "char", "ids", "bpe", "unigram" or "wordpiece".
  virtual std::string kind() const = 0;
  /// Whether decode(encode(t)) == t for every t that encode accepts. The others give text back as
  /// their normalizer left it.
  virtual bool is_lossless() const { return true; }
  virtual int64_t vocabulary_size() const = 0;

  /// Tokens of `text`; never a special token, even where the text spells one. `threads` >= 1 bounds
  /// the threads used inside; the result does not depend on it. TextError where the tokenizer
  /// cannot express the text (char: a character it has not seen, invalid UTF-8).
  virtual std::vector<int32_t> encode(std::string_view text, int threads = 1) const = 0;

  /// The bytes of one token, valid as long as the tokenizer. Concatenating them decodes a stream; a
  /// multi-byte character may be spread over several tokens. UserError naming the token and the
  /// size of the vocabulary when it is out of range.
  virtual std::string_view token_bytes(int32_t token) const = 0;

  /// The special token that ends a document, if the tokenizer has one.
  virtual std::optional<int32_t> end_of_document() const { return std::nullopt; }

  /// Everything parse_tokenizer needs to make the same tokenizer again, as JSON text: for bpe,
  /// unigram and wordpiece a Hugging Face tokenizer.json, for the others "format":
  /// "strait.tokenizer/1".
  virtual std::string serialize() const = 0;

  /// token_bytes of all, one after the other.
  std::string decode(std::span<const int32_t> tokens) const;

 protected:
  /// Throws what token_bytes promises unless `token` is in range.
  void check_token(int32_t token) const;
};

/// A tokenizer as data.tokenizer names it: "byte", "char" (the characters of `text`), "bpe:N"
/// (trained on `text`, at most N tokens), "ids:N" (numbers below N), or the path of a saved
/// tokenizer. UserError with key data.tokenizer and the nearest choice.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec, std::string_view text);

/// Whether make_tokenizer(spec, text) would learn merges, which must see the training part only.
bool tokenizer_is_trained(const std::string& spec);

/// The inverse of Tokenizer::serialize. UserError naming `name` and the part that is wrong or
/// unsupported.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json_text, const std::string& name);

/// A tokenizer from a file, recognised by its contents; see parse_tokenizer.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

/// Writes serialize() atomically to `path`.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& path);

}  // namespace strait
