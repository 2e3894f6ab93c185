// How tokenizer.json cuts normalized text into the pieces that the model sees one by one: the
// member "pre_tokenizer".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "strait/base/json.h"

namespace strait::subword {

struct Piece {
  std::string text;
  bool at_start = false;  // begins where the whole text begins
};

using Pieces = std::vector<Piece>;

/// Steps that cut every piece of the last one. Immutable and thread-safe.
class PreTokenizer {
 public:
  /// Cuts nothing.
  PreTokenizer() = default;

  /// Supported: Sequence, Metaspace, BertPreTokenizer, WhitespaceSplit, Punctuation and Split of a
  /// String (both with behavior Isolated, Removed, MergedWithPrevious or MergedWithNext), Digits.
  /// UserError naming the member otherwise.
  explicit PreTokenizer(const Json& json);

  /// Pieces are not empty.
  Pieces apply(std::string text, bool at_start) const;

 private:
  using Step = std::function<void(const Piece& piece, Pieces& out)>;
  void add(const Json& part, const std::string& where);
  std::vector<Step> steps_;
};

}  // namespace strait::subword
