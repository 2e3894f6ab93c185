// Ranks as slots of one process whose blocks attend step by step, with plain loops in the place of
// transfers: one rank alone, and neighbours that exchange heads with rings across them.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "strait/base/random.h"
#include "strait/model/block.h"
#include "strait/shape/split.h"

namespace strait::model::test {

using enum BlockValue;
using Numbers = std::vector<double>;

inline constexpr int64_t kSequences = 2, kTokens = 48;

inline Numbers random(int64_t count, const char* purpose) {
  const RandomStream stream(7, purpose);
  Numbers numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = stream.normal(i);
  return numbers;
}

struct Results {
  Numbers attention, qkv_gradient;
};

struct Form {
  bool llama = false;
  int64_t heads = 8, kv_heads = 8, window = 0;

  ModelShape shape() const {
    ShapeOptions options;
    options.layers = 1;
    options.heads = heads;
    options.kv_heads = kv_heads;
    options.width = 5 * heads;
    options.head_width = llama ? 6 : 0;
    options.ffn_width = 24;
    options.context = kTokens;
    options.dropout = 0;
    ModelOptions model;
    model.family = window > 0 ? "mistral" : llama ? "llama" : "gpt2";
    model.shape = options;
    model.shape.window = window;
    model.shape.bias = window == 0;
    return model_shape(model, 16);
  }
};

/// A rank's values, and calls with all of them.
class Rank {
 public:
  Rank(const Model& model, const Batch& batch) : batch_(batch), model_(model) {
    settings_.dtype = Dtype::kFloat64;
    settings_.training = false;
  }
  Numbers& operator[](BlockValue value) { return values_[value]; }
  Numbers& make(BlockValue value, int64_t count) {
    values_[value].assign(static_cast<size_t>(count), std::nan(""));
    return values_[value];
  }
  void drop(BlockValue value) { values_.erase(value); }
  SegmentCall call() {
    SegmentCall call;
    call.settings = &settings_;
    call.batch = &batch_;
    for (auto& [value, numbers] : values_) call.give(value, numbers.data());
    return call;
  }
  const SegmentedBlock& block() const { return *model_.block(1).segments(); }
  const Batch& batch() const { return batch_; }

 private:
  Settings settings_;
  Batch batch_;
  const Model& model_;
  std::map<BlockValue, Numbers> values_;
};

/// All tokens and heads on one rank.
inline Results whole(const ModelShape& shape, const Numbers& qkv,
                     const Numbers& attention_gradient) {
  const BlockExtent extent = block_extent(shape, kSequences, kTokens, Dtype::kFloat64);
  const Model model(shape, Dtype::kFloat64);
  Batch batch;
  batch.batch = kSequences;
  batch.tokens = kTokens;
  Rank rank(model, batch);
  rank[kQkv] = qkv;
  rank[kAttentionGradient] = attention_gradient;
  for (const BlockValue value : {kAttention, kLogSumExp, kDelta, kQkvGradient})
    rank.make(value, value_elements(value, extent));
  const int attention = static_cast<int>(Segment::kAttention);
  rank.block().forward(rank.call(), {attention, attention + 1});
  rank.block().backward_input(rank.call(), {attention, attention + 1});
  return {rank[kAttention], rank[kQkvGradient]};
}

/// h neighbours exchange heads, and groups of them are on rings of r.
class HeadsRing {
 public:
  HeadsRing(const ModelShape& shape, int64_t heads, int64_t rings)
      : heads_(heads), rings_(rings), tokens_(kTokens / (heads * rings)), local_(shape) {
    local_.engine = SequenceEngine::kHeads;
    local_.head_ranks = heads;
    local_ = local_shape(local_, 1, 1, heads * rings);
    extent_ = block_extent(local_, kSequences, tokens_, Dtype::kFloat64);
    model_ = std::make_unique<Model>(local_, Dtype::kFloat64);
    for (int64_t at = 0; at < heads * rings; ++at) {
      Batch batch;
      batch.batch = kSequences;
      batch.tokens = tokens_;
      batch.sharers = heads * rings;
      batch.sharer = at;
      batch.head_sharers = heads;
      ranks_.emplace_back(*model_, batch);
    }
  }

  Results run(const Numbers& qkv, const Numbers& attention_gradient) {
    const int64_t wide = extent_.qkv_width(), narrow = extent_.attention_width();
    const int64_t rows = kSequences * tokens_, keys = 2 * rows * extent_.kv_width();
    for (Rank& rank : ranks_) {
      rank[kQkv] = take(qkv, wide, rank);
      rank[kAttentionGradient] = take(attention_gradient, narrow, rank);
      for (const BlockValue value : {kHeadSend, kHeadReceive, kQkvGradient})
        rank.make(value, rows * wide);
      for (const BlockValue value : {kHeadOutSend, kHeadOutReceive, kHeadAttention, kAttention})
        rank.make(value, rows * narrow);
      for (const BlockValue value : {kHeadDeltaSend, kHeadDeltaReceive})
        rank.make(value, rows * extent_.heads);
      for (const BlockValue value : {kKeys, kKeyGradient, kGatheredKeyGradient})
        rank.make(value, keys);
      for (const BlockValue value : {kLogSumExp, kDelta}) rank.make(value, rows * extent_.heads);
    }
    forward();
    backward();
    Results results{Numbers(attention_gradient.size()), Numbers(qkv.size())};
    for (Rank& rank : ranks_) {
      put(rank[kAttention], narrow, rank, results.attention);
      put(rank[kQkvGradient], wide, rank, results.qkv_gradient);
    }
    return results;
  }

 private:
  void step(HeadStep step) {
    for (Rank& rank : ranks_) rank.block().run_heads(rank.call(), step);
  }
  /// Part p of what a member of a group sends goes to its member p.
  void all_to_all(BlockValue from, BlockValue to) {
    for (size_t at = 0; at < ranks_.size(); ++at)
      for (int64_t other = 0; other < heads_; ++other) {
        const auto count = static_cast<int64_t>(ranks_[at][from].size()) / heads_;
        const int64_t place = static_cast<int64_t>(at) % heads_;
        Rank& sender = ranks_[at - static_cast<size_t>(place) + static_cast<size_t>(other)];
        std::copy_n(sender[from].begin() + place * count, count,
                    ranks_[at][to].begin() + other * count);
      }
  }
  /// From each group to the next one.
  void shift(BlockValue from, BlockValue to) {
    std::vector<Numbers> sent;
    for (Rank& rank : ranks_) sent.push_back(rank[from]);
    for (size_t at = 0; at < ranks_.size(); ++at)
      ranks_[(at + static_cast<size_t>(heads_)) % ranks_.size()][to] = sent[at];
  }

  void forward() {
    step(HeadStep::kSend);
    all_to_all(kHeadSend, kHeadReceive);
    step(HeadStep::kOrder);
    for (Rank& rank : ranks_) rank.block().pack_keys(rank.call(), {});
    for (int64_t round = 0; round < rings_; ++round) {
      for (Rank& rank : ranks_) rank.block().attend_round(rank.call(), round);
      shift(kKeys, kKeys);
    }
    step(HeadStep::kSplit);
    all_to_all(kHeadOutSend, kHeadOutReceive);
    step(HeadStep::kReceive);
  }

  /// Parts of sums go home at once.
  void backward() {
    for (Rank& rank : ranks_) rank.drop(kHeadAttention);
    step(HeadStep::kSendGradient);
    all_to_all(kHeadOutSend, kHeadOutReceive);
    all_to_all(kHeadDeltaSend, kHeadDeltaReceive);
    step(HeadStep::kOrderGradient);
    for (Rank& rank : ranks_) rank.block().pack_keys(rank.call(), {});
    std::vector<Numbers> home(ranks_.size());
    const auto attend = [&](int64_t round, sequence::OwnPairs pairs) {
      for (Rank& rank : ranks_) rank.block().attend_round_input(rank.call(), {round, {}, pairs});
    };
    attend(0, sequence::OwnPairs::kAcross);
    for (size_t at = 0; at < ranks_.size(); ++at) home[at] = ranks_[at][kKeyGradient];
    shift(kKeys, kKeys);
    for (int64_t round = 1; round < rings_; ++round) {
      attend(round, sequence::OwnPairs::kAll);
      for (size_t at = 0; at < ranks_.size(); ++at) {
        const size_t owner =
            (at + ranks_.size() - static_cast<size_t>(round * heads_)) % ranks_.size();
        Numbers& sum = home[owner];
        const Numbers& part = ranks_[at][kKeyGradient];
        for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
      }
      shift(kKeys, kKeys);
    }
    for (size_t at = 0; at < ranks_.size(); ++at) ranks_[at][kKeyGradient] = home[at];
    attend(0, sequence::OwnPairs::kWithin);
    step(HeadStep::kSplitGradient);
    all_to_all(kHeadSend, kHeadReceive);
    step(HeadStep::kReceiveGradient);
  }

  int64_t place(const Rank& rank, int64_t row) const {
    return row / tokens_ * kTokens + rank.batch().share().position(row % tokens_);
  }
  Numbers take(const Numbers& all, int64_t width, const Rank& rank) const {
    Numbers own;
    for (int64_t row = 0; row < kSequences * tokens_; ++row) {
      const auto first = all.begin() + place(rank, row) * width;
      own.insert(own.end(), first, first + width);
    }
    return own;
  }
  void put(const Numbers& own, int64_t width, const Rank& rank, Numbers& all) const {
    for (int64_t row = 0; row < kSequences * tokens_; ++row)
      std::copy_n(own.begin() + row * width, width, all.begin() + place(rank, row) * width);
  }

  int64_t heads_, rings_, tokens_;
  ModelShape local_;
  BlockExtent extent_;
  std::unique_ptr<Model> model_;
  std::vector<Rank> ranks_;
};

inline double distance(const Numbers& got, const Numbers& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

}  // namespace strait::model::test
