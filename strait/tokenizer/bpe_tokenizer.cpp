#include "strait/tokenizer/bpe_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <limits>

#include "strait/base/errors.h"
#include "strait/tokenizer/bpe_json.h"
#include "strait/tokenizer/byte_alphabet.h"
#include "strait/tokenizer/subword/characters.h"
#include "strait/tokenizer/subword/merge_queue.h"
#include "strait/tokenizer/utf8.h"

namespace strait {
namespace {

constexpr size_t kShortPiece = 64;  // bytes; longer pieces use a queue and are not remembered
constexpr size_t kRememberedPieces = 1 << 21;  // per thread
constexpr size_t kSmallestShare = 1 << 16;     // bytes that are worth a thread
constexpr int32_t kNone = -1;

/// Whether a text may differ from its normal form C: the first characters that do are U+0300 and
/// on.
bool may_change(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return static_cast<uint8_t>(c) >= 0xcc; });
}

/// In normal form C; bytes that are not UTF-8 stay and part what stands on either side.
std::string normalized(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = first_invalid_utf8(text, at);
    out += subword::normal_form(std::string(text.substr(at, end - at)), subword::NormalForm::kNfc);
    for (at = end; at < text.size() && utf8_sequence_length(text, at) == 0; ++at) out += text[at];
  }
  return out;
}

}  // namespace

/// Tokens of the pieces seen so far; the texts that they lie in must outlive it.
class BpeTokenizer::PieceCache {
 public:
  /// Appends the tokens of `piece` and returns true if they are known.
  bool append(std::string_view piece, std::vector<int32_t>& out) const {
    const int32_t index = table_.find(piece);
    if (index < 0) return false;
    out.insert(out.end(), tokens_.begin() + begins_[index], tokens_.begin() + begins_[index + 1]);
    return true;
  }
  void remember(std::string_view piece, std::span<const int32_t> tokens) {
    if (table_.size() >= kRememberedPieces) return;
    table_.find_or_insert(piece, static_cast<int32_t>(begins_.size() - 1));
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    begins_.push_back(static_cast<int64_t>(tokens_.size()));
  }

 private:
  PieceTable table_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> begins_ = {0};
};

BpeTokenizer::BpeTokenizer(BpeModel model) : model_(std::move(model)), pattern_(model_.split) {
  check();
  token_of_byte_.fill(kNone);
  std::vector<bool> whole(model_.tokens.size());  // of text that is not split
  for (const auto* tokens : {&model_.special_tokens, &model_.added_tokens})
    for (const int32_t token : *tokens) whole[token] = true;
  std::vector<subword::SortedPieces::Entry> added;
  for (const int32_t token : model_.added_tokens)
    added.emplace_back(model_.tokens[static_cast<size_t>(token)], token);
  added_ = subword::SortedPieces(std::move(added));
  for (size_t token = 0; token < model_.tokens.size(); ++token)
    if (model_.tokens[token].size() == 1 && !whole[token])
      token_of_byte_[static_cast<uint8_t>(model_.tokens[token][0])] = static_cast<int32_t>(token);
  for (int byte = 0; byte < 256; ++byte)
    if (token_of_byte_[byte] == kNone)
      throw UserError(
          fmt::format("the vocabulary has no token \"{}\" for byte 0x{:02x}; only byte-level "
                      "vocabularies with all 256 bytes are supported",
                      bytes_to_visible(std::string(1, static_cast<char>(byte))), byte));
  if (model_.ignore_merges)
    for (size_t token = 0; token < model_.tokens.size(); ++token)
      if (!whole[token])
        whole_pieces_.find_or_insert(model_.tokens[token], static_cast<int32_t>(token));
  for (size_t i = 0; i < model_.merges.size(); ++i)
    if (ranks_.find_or_insert(pair_key(model_.merges[i].left, model_.merges[i].right),
                              static_cast<int32_t>(i)) != static_cast<int32_t>(i))
      throw UserError(fmt::format("merge {} stands in the list twice", i));
}

void BpeTokenizer::check() const {
  const auto size = static_cast<int64_t>(model_.tokens.size());
  if (size > std::numeric_limits<int32_t>::max())
    throw UserError(fmt::format("a vocabulary of {} tokens is too large", size));
  const auto in_range = [&](int32_t token) { return token >= 0 && token < size; };
  for (const int32_t token : model_.special_tokens)
    if (!in_range(token)) throw UserError(fmt::format("special token {} is out of range", token));
  for (const int32_t token : model_.added_tokens) {
    if (!in_range(token)) throw UserError(fmt::format("added token {} is out of range", token));
    if (model_.tokens[static_cast<size_t>(token)].empty())
      throw UserError(fmt::format("added token {} is empty", token));
  }
  if (model_.end_of_document && !in_range(*model_.end_of_document))
    throw UserError(fmt::format("token {} is out of range", *model_.end_of_document));
  for (size_t i = 0; i < model_.merges.size(); ++i) {
    const Merge& merge = model_.merges[i];
    if (!in_range(merge.left) || !in_range(merge.right) || !in_range(merge.result))
      throw UserError(fmt::format("merge {} names a token that is out of range", i));
    for (const int32_t token : {merge.left, merge.right, merge.result})
      for (const auto* tokens : {&model_.special_tokens, &model_.added_tokens})
        if (std::ranges::binary_search(*tokens, token))
          throw UserError(fmt::format("merge {} uses the {} token {}", i,
                                      tokens == &model_.special_tokens ? "special" : "added",
                                      token));
    if (model_.tokens[merge.left] + model_.tokens[merge.right] != model_.tokens[merge.result])
      throw UserError(fmt::format("merge {}: the result is not its parts joined", i));
  }
}

std::string_view BpeTokenizer::token_bytes(int32_t token) const {
  check_token(token);
  return model_.tokens[static_cast<size_t>(token)];
}

std::string BpeTokenizer::serialize() const { return bpe_to_json(model_); }

std::vector<int32_t> BpeTokenizer::encode(std::string_view text, int threads) const {
  std::vector<int32_t> tokens;
  PieceCache cache;
  added_.cut(
      text, [&](std::string_view stretch) { encode_stretch(stretch, threads, cache, tokens); },
      [&](int32_t token) { tokens.push_back(token); });
  return tokens;
}

void BpeTokenizer::encode_stretch(std::string_view text, int threads, PieceCache& cache,
                                  std::vector<int32_t>& tokens) const {
  if (threads <= 1 || text.size() <= kSmallestShare) {
    encode_range(text, cache, tokens);
    return;
  }
  std::vector<std::string_view> shares;
  const size_t share = std::max(kSmallestShare, text.size() / static_cast<size_t>(threads) + 1);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = safe_split_offset(text, std::min(text.size(), begin + share));
    shares.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  std::vector<std::future<std::vector<int32_t>>> parts;
  for (const std::string_view part : shares)
    parts.push_back(std::async(std::launch::async, [this, part] {
      std::vector<int32_t> out;
      PieceCache own;
      encode_range(part, own, out);
      return out;
    }));
  for (auto& part : parts) {
    const std::vector<int32_t> out = part.get();
    tokens.insert(tokens.end(), out.begin(), out.end());
  }
}

void BpeTokenizer::encode_range(std::string_view text, PieceCache& cache,
                                std::vector<int32_t>& out) const {
  out.reserve(text.size() / 3);
  if (!model_.nfc || !may_change(text)) return encode_split(text, cache, out);
  const std::string form = normalized(text);
  PieceCache own;  // which keeps pieces of `form`
  encode_split(form, own, out);
}

void BpeTokenizer::encode_split(std::string_view text, PieceCache& cache,
                                std::vector<int32_t>& out) const {
  Splitter splitter(pattern_, text);
  for (std::string_view piece; splitter.next(piece);) {
    if (piece.size() == 1) {
      out.push_back(token_of_byte_[static_cast<uint8_t>(piece[0])]);
    } else if (const int32_t whole = whole_pieces_.find(piece); whole != kNone) {
      out.push_back(whole);
    } else if (piece.size() >= kShortPiece) {
      encode_long_piece(piece, out);
    } else if (!cache.append(piece, out)) {
      const size_t before = out.size();
      encode_piece(piece, out);
      cache.remember(piece, std::span(out).subspan(before));
    }
  }
}

void BpeTokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& out) const {
  std::array<int32_t, kShortPiece> tokens;
  std::array<int32_t, kShortPiece> ranks;  // of the pair that begins here
  size_t size = piece.size();
  for (size_t i = 0; i < size; ++i) tokens[i] = token_of_byte_[static_cast<uint8_t>(piece[i])];
  const auto pair_rank = [&](size_t i) {
    return i + 1 < size ? rank(tokens[i], tokens[i + 1]) : kNone;
  };
  for (size_t i = 0; i < size; ++i) ranks[i] = pair_rank(i);
  while (true) {
    size_t best = size;
    for (size_t i = 0; i < size; ++i)
      if (ranks[i] != kNone && (best == size || ranks[i] < ranks[best])) best = i;
    if (best == size) break;
    tokens[best] = model_.merges[ranks[best]].result;
    std::copy(tokens.begin() + best + 2, tokens.begin() + size, tokens.begin() + best + 1);
    std::copy(ranks.begin() + best + 2, ranks.begin() + size, ranks.begin() + best + 1);
    --size;
    ranks[best] = pair_rank(best);
    if (best > 0) ranks[best - 1] = pair_rank(best - 1);
  }
  out.insert(out.end(), tokens.begin(), tokens.begin() + size);
}

void BpeTokenizer::encode_long_piece(std::string_view piece, std::vector<int32_t>& out) const {
  std::vector<int32_t> tokens;
  tokens.reserve(piece.size());
  for (const char byte : piece) tokens.push_back(token_of_byte_[static_cast<uint8_t>(byte)]);
  subword::merge_all(
      tokens, [&](int32_t left, int32_t right) { return rank(left, right); },
      [&](int32_t r) { return model_.merges[r].result; });
  out.insert(out.end(), tokens.begin(), tokens.end());
}

}  // namespace strait
