// SentencePiece's precompiled map of characters, as tokenizer.json carries it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace strait::subword {

/// A trie of what is replaced, as a double array (Yata et al., "A compact static double-array",
/// 2007, in the form of Darts-clone), and the texts that replace it, each with a zero byte behind
/// it. Immutable.
class Charsmap {
 public:
  /// `base64`: 32 bits with the bytes of the trie, the trie, the texts. UserError naming what is
  /// wrong.
  explicit Charsmap(std::string_view base64);

  /// Clusters of less than six bytes are looked up whole, otherwise and where that finds nothing
  /// their characters. As in Hugging Face's library the shortest entry that begins a cluster
  /// replaces the whole of it.
  std::string apply(std::string_view text) const;

 private:
  /// Appends what replaces `part`; false where nothing does.
  bool replace(std::string_view part, std::string& out) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace strait::subword
