#include "strait/tokenizer/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <queue>
#include <string>

#include "strait/base/errors.h"
#include "strait/tokenizer/byte_alphabet.h"
#include "strait/tokenizer/flat_table.h"
#include "strait/tokenizer/split_pattern.h"

namespace strait {
namespace {

constexpr int32_t kNoToken = -1;
constexpr int64_t kSlices = 64;
constexpr int64_t kLargestSample = int64_t{1} << 29;  // slots are numbered with 32 bits

struct Pieces {
  std::vector<std::string_view> texts;  // distinct, in order of appearance
  std::vector<int64_t> counts;
};

Pieces count_pieces(std::string_view text) {
  Pieces pieces;
  PieceTable table;
  const SplitPattern pattern;
  Splitter splitter(pattern, text);
  for (std::string_view piece; splitter.next(piece);) {
    const auto fresh = static_cast<int32_t>(pieces.texts.size());
    const int32_t index = table.find_or_insert(piece, fresh);
    if (index == fresh) {
      pieces.texts.push_back(piece);
      pieces.counts.push_back(0);
    }
    ++pieces.counts[index];
  }
  return pieces;
}

/// The evenly spaced slices that stand for a long text.
std::string sample_of(std::string_view text, int64_t bytes) {
  std::string sample;
  const size_t slice = static_cast<size_t>(std::max<int64_t>(1, bytes / kSlices));
  for (int64_t i = 0; i < kSlices; ++i)
    sample += text.substr(text.size() / kSlices * static_cast<size_t>(i), slice);
  return sample;
}

/// All distinct pieces laid end to end, each between two empty slots, as chains of tokens. A token
/// covers as many slots as it has bytes, so both neighbours of a token are found without links.
class Trainer {
 public:
  Trainer(const Pieces& pieces, BpeModel& model) : model_(model) {
    lay_out(pieces);
    for (size_t slot = 1; slot + 1 < first_.size(); ++slot)
      if (first_[slot] >= 0 && first_[slot + 1] >= 0)
        add(first_[slot], first_[slot + 1], static_cast<int32_t>(slot), weight(slot));
    queue_touched();
  }

  /// Merges until there are `size` tokens or no pair is frequent enough.
  void run(size_t size, int64_t minimum_count) {
    while (model_.tokens.size() < size) {
      const int32_t best = take_best(minimum_count);
      if (best < 0) return;
      merge(best);
      queue_touched();
    }
  }

 private:
  struct Pair {
    int32_t left;
    int32_t right;
    int64_t count = 0;
    bool touched = false;             // listed in touched_
    std::vector<int32_t> slots = {};  // where it may stand; some are out of date
  };
  struct Candidate {
    int64_t count;
    uint64_t key;
    int32_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  void lay_out(const Pieces& pieces) {
    std::array<int32_t, 256> token_of_byte{};
    for (size_t i = 0; i < 256; ++i)
      token_of_byte[bytes_in_token_order()[i]] = static_cast<int32_t>(i);
    first_.push_back(kNoToken);
    piece_.push_back(-1);
    for (size_t i = 0; i < pieces.texts.size(); ++i) {
      for (const char c : pieces.texts[i]) first_.push_back(token_of_byte[static_cast<uint8_t>(c)]);
      first_.push_back(kNoToken);
      piece_.resize(first_.size(), static_cast<int32_t>(i));
    }
    last_ = first_;
    counts_ = pieces.counts;
  }

  int64_t weight(size_t slot) const { return counts_[piece_[slot]]; }
  int32_t length(int32_t token) const { return static_cast<int32_t>(model_.tokens[token].size()); }

  Pair& pair_of(int32_t left, int32_t right) {
    const auto fresh = static_cast<int32_t>(pairs_.size());
    const int32_t index = table_.find_or_insert(pair_key(left, right), fresh);
    if (index == fresh) pairs_.push_back({left, right});
    return pairs_[index];
  }

  void add(int32_t left, int32_t right, int32_t slot, int64_t count) {
    Pair& pair = pair_of(left, right);
    pair.count += count;
    pair.slots.push_back(slot);
    if (!pair.touched) touched_.push_back(static_cast<int32_t>(&pair - pairs_.data()));
    pair.touched = true;
  }

  void queue_touched() {
    for (const int32_t index : touched_) {
      Pair& pair = pairs_[index];
      pair.touched = false;
      queue_.push({pair.count, pair_key(pair.left, pair.right), index});
    }
    touched_.clear();
  }

  /// Index of the most frequent pair, or -1. Counts in the queue may be too high, never too low.
  int32_t take_best(int64_t minimum_count) {
    while (!queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = pairs_[top.pair].count;
      if (count < minimum_count) continue;
      if (count == top.count) return top.pair;
      top.count = count;
      queue_.push(top);
    }
    return -1;
  }

  void merge(int32_t index) {
    const int32_t left = pairs_[index].left;
    const int32_t right = pairs_[index].right;
    // New bytes for certain: no token crosses the ends of another, so what merges made of those
    // bytes is the same wherever they form a token, and the pair that makes them is always this
    // one.
    const auto joined = static_cast<int32_t>(model_.tokens.size());
    model_.tokens.push_back(model_.tokens[left] + model_.tokens[right]);
    model_.merges.push_back({left, right, joined});
    std::vector<int32_t> slots = std::move(pairs_[index].slots);
    pairs_[index].slots.clear();
    // Ascending, because all were found in one pass when the later of the two tokens was made:
    // "aaa" must be merged from the left.
    for (const int32_t slot : slots) merge_at(slot, index, joined);
    ensure(pairs_[index].count == 0, "BPE training: a merged pair is left over");
  }

  void merge_at(int32_t slot, int32_t index, int32_t joined) {
    const int32_t left = pairs_[index].left;
    const int32_t right = pairs_[index].right;
    if (first_[slot] != left) return;
    const int32_t middle = slot + length(left);
    if (first_[middle] != right) return;
    const int64_t count = weight(slot);
    const int32_t end = middle + length(right);
    const int32_t before = last_[slot - 1];
    const int32_t after = first_[end];
    pairs_[index].count -= count;
    first_[middle] = kNoToken;
    first_[slot] = joined;
    last_[end - 1] = joined;
    if (before >= 0) {
      pair_of(before, left).count -= count;
      add(before, joined, slot - length(before), count);
    }
    if (after >= 0) {
      pair_of(right, after).count -= count;
      add(joined, after, slot, count);
    }
  }

  BpeModel& model_;
  std::vector<int32_t> first_;  // token that begins in a slot, or kNoToken
  std::vector<int32_t> last_;   // token that ends in a slot; out of date inside tokens
  std::vector<int32_t> piece_;  // which piece a slot belongs to
  std::vector<int64_t> counts_;
  std::vector<Pair> pairs_;
  PairTable table_;
  std::vector<int32_t> touched_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

BpeModel train_bpe(std::string_view text, const BpeTrainOptions& options) {
  if (options.vocabulary_size < kSmallestBpeVocabulary ||
      options.vocabulary_size > kLargestBpeVocabulary)
    throw UserError(fmt::format("a BPE vocabulary has {} to {} tokens, not {}",
                                kSmallestBpeVocabulary, kLargestBpeVocabulary,
                                options.vocabulary_size));
  std::string sample;
  const int64_t most = std::min(options.sample_bytes, kLargestSample);
  if (static_cast<int64_t>(text.size()) > most) {
    sample = sample_of(text, most);
    text = sample;
  }
  BpeModel model;
  for (const uint8_t byte : bytes_in_token_order())
    model.tokens.emplace_back(1, static_cast<char>(byte));
  Trainer(count_pieces(text), model)
      .run(static_cast<size_t>(options.vocabulary_size) - 1, options.minimum_count);
  model.end_of_document = static_cast<int32_t>(model.tokens.size());
  model.special_tokens = {*model.end_of_document};
  model.tokens.emplace_back(kEndOfDocumentText);
  return model;
}

}  // namespace strait
