// What tokenizer.json does to text before it is cut: the member "normalizer".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "strait/base/json.h"

namespace strait::subword {

/// Steps from text to text, each UTF-8; applied in order. Immutable and thread-safe.
class Normalizer {
 public:
  /// Does nothing.
  Normalizer() = default;

  /// Supported: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace of
  /// a String or of the Regex " {2,}", Precompiled, BertNormalizer. UserError naming the member
  /// otherwise.
  explicit Normalizer(const Json& json);

  /// UserError when the text grows as check_growth forbids.
  std::string apply(std::string text) const;
  /// Whether every text comes back as it was.
  bool empty() const { return steps_.empty(); }

 private:
  using Step = std::function<std::string(std::string)>;
  void add(const Json& part, const std::string& where);
  static Step step_of(const Json& part, const std::string& where);
  std::vector<Step> steps_;
};

/// UserError when steps of a file make `bytes` of `original` bytes of text, and that is more than
/// 16 times as many and 1 KiB. Of what Unicode defines NFKD lengthens most, 11 times; 40 steps that
/// double a letter would need a terabyte for it.
void check_growth(size_t original, size_t bytes);

/// `text` with `to` for every `from`, which is not empty. UserError by check_growth.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace strait::subword
