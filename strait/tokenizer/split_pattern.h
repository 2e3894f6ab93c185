// Cuts text into the pieces that byte-pair merges never cross.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace strait {

/// kGpt2: English contractions; a run of letters, of numbers or of other signs, each with at most
/// one space before it; white space. kLlama3: contractions in either case; letters with at most one
/// sign or space before them; up to three digits; other signs with a space before and line ends
/// behind them; white space up to its last line end; other white space. kQwen2: kLlama3 with single
/// digits. kGpt2Digits: digits are cut out one by one, then kGpt2 splits what is between them.
enum class SplitKind : uint8_t { kGpt2, kLlama3, kQwen2, kGpt2Digits };

/// The pattern as tokenizer.json writes it; of kGpt2Digits that behind the digits.
std::string_view split_regex(SplitKind kind);

/// Immutable and thread-safe; compiled by PCRE2, to machine code where the platform allows it, when
/// a process first needs its kind. What a letter or a number is, is Unicode's of the
/// installed PCRE2.
class SplitPattern {
 public:
  explicit SplitPattern(SplitKind kind = SplitKind::kGpt2);

 private:
  friend class Splitter;
  struct Compiled;
  static const Compiled& compiled(SplitKind kind);

  const Compiled* compiled_;
};

/// One pass over `text`, which must outlive it, as must the pattern. Not thread-safe.
class Splitter {
 public:
  Splitter(const SplitPattern& pattern, std::string_view text);
  ~Splitter();
  Splitter(const Splitter&) = delete;
  Splitter& operator=(const Splitter&) = delete;

  /// Sets `piece` to the next piece, which is not empty; false at the end. The pieces joined are
  /// the text. A run of bytes that are not UTF-8 is a piece of its own, and the text on either side
  /// is matched as if it stood alone. Cost: O(piece), about 60 ns + 1 ns per byte.
  bool next(std::string_view& piece);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// An offset at or after `offset` at which every split of `text` has a border whatever stands
/// around it (before a space that follows an ASCII letter), or text.size(). Lets pieces of a text
/// be split apart.
size_t safe_split_offset(std::string_view text, size_t offset);

}  // namespace strait
