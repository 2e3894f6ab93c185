// Byte-pair encoding in the plainest form: everything is counted anew for every merge.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strait/tokenizer/bpe_model.h"
#include "strait/tokenizer/byte_alphabet.h"
#include "strait/tokenizer/split_pattern.h"

namespace strait::testing {

inline std::vector<std::string> split(std::string_view text, SplitKind kind = SplitKind::kGpt2) {
  const SplitPattern pattern(kind);
  Splitter splitter(pattern, text);
  std::vector<std::string> pieces;
  for (std::string_view piece; splitter.next(piece);) pieces.emplace_back(piece);
  return pieces;
}

inline std::vector<int32_t> byte_tokens(const std::string& piece) {
  std::vector<int32_t> tokens;
  const auto& order = bytes_in_token_order();
  for (const char c : piece)
    tokens.push_back(static_cast<int32_t>(
        std::find(order.begin(), order.end(), static_cast<uint8_t>(c)) - order.begin()));
  return tokens;
}

/// Replaces `pair` by `joined`, from left to right.
inline void replace_pair(std::vector<int32_t>& tokens, std::pair<int32_t, int32_t> pair,
                         int32_t joined) {
  std::vector<int32_t> out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i + 1 < tokens.size() && std::pair(tokens[i], tokens[i + 1]) == pair) {
      out.push_back(joined);
      ++i;
    } else {
      out.push_back(tokens[i]);
    }
  }
  tokens = out;
}

inline BpeModel reference_train(std::string_view text, size_t vocabulary_size,
                                int64_t minimum_count = 2) {
  BpeModel model;
  for (const uint8_t byte : bytes_in_token_order())
    model.tokens.emplace_back(1, static_cast<char>(byte));
  std::vector<std::vector<int32_t>> pieces;
  for (const std::string& piece : split(text)) pieces.push_back(byte_tokens(piece));
  while (model.tokens.size() + 1 < vocabulary_size) {
    std::map<std::pair<int32_t, int32_t>, int64_t>
        counts;  // ordered: the first of equals is the smallest
    for (const auto& piece : pieces)
      for (size_t i = 0; i + 1 < piece.size(); ++i) ++counts[{piece[i], piece[i + 1]}];
    const auto best =
        std::max_element(counts.begin(), counts.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == counts.end() || best->second < minimum_count) break;
    const auto pair = best->first;
    const auto joined = static_cast<int32_t>(model.tokens.size());
    model.tokens.push_back(model.tokens[pair.first] + model.tokens[pair.second]);
    model.merges.push_back({pair.first, pair.second, joined});
    for (auto& piece : pieces) replace_pair(piece, pair, joined);
  }
  model.end_of_document = static_cast<int32_t>(model.tokens.size());
  model.special_tokens = {*model.end_of_document};
  model.tokens.emplace_back(kEndOfDocumentText);
  return model;
}

/// In every piece, joins the leftmost pair of the earliest merge until there is none.
inline std::vector<int32_t> reference_encode(std::string_view text, const BpeModel& model) {
  std::vector<int32_t> out;
  for (const std::string& piece : split(text)) {
    std::vector<int32_t> tokens = byte_tokens(piece);
    while (true) {
      size_t best = model.merges.size();
      size_t place = 0;
      for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        for (size_t m = 0; m < best; ++m) {
          if (model.merges[m].left == tokens[i] && model.merges[m].right == tokens[i + 1]) {
            best = m;
            place = i;
          }
        }
      }
      if (best == model.merges.size()) break;
      tokens[place] = model.merges[best].result;
      tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(place) + 1);
    }
    out.insert(out.end(), tokens.begin(), tokens.end());
  }
  return out;
}

}  // namespace strait::testing
