// Heads exchanged for the documents of a plan, by the steps of the block alone: ranks are slots of
// one process, and plain loops take the place of the transfers. Forwards have the bits of a ring of
// as many ranks as there are runs, and those of the even engine where that attends to the same keys
// at once (specs: sequences 9d, Z3, Z4).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "strait/sequence/exchanged_heads.h"
#include "strait/sequence/partition.h"
#include "tests/model/heads_ring.h"

namespace strait::model {
namespace {

using enum BlockValue;
using test::distance;
using test::Form;
using test::HeadsRing;
using test::kSequences;
using test::kTokens;
using test::Numbers;
using test::random;
using test::Rank;
using test::Results;

/// All documents on all ranks of `grid` in one group, with the numbers of all tokens, document by
/// document.
class Planned {
 public:
  Planned(const ModelShape& shape, const sequence::Plan& plan) : plan_(plan), local_(shape) {
    const int64_t ranks = plan.grid.ranks();
    local_.engine = SequenceEngine::kRing;
    local_ = local_shape(local_, 1, 1, ranks);
    model_ = std::make_unique<Model>(local_, Dtype::kFloat64);
    extent_ = block_extent(local_, 1, 1, Dtype::kFloat64);
    for (int64_t rank = 0; rank < ranks; ++rank)
      layouts_.push_back(sequence::rank_layout(plan, rank));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Batch batch;
      batch.batch = 1;
      batch.tokens = layout(rank).attended_rows();
      batch.sharers = ranks;
      batch.sharer = rank;
      batch.layout = &layout(rank);
      rows_.emplace_back(*model_, batch);
      if (exchanges()) heads_.emplace_back(*model_, batch);
    }
  }

  Results run(const Numbers& qkv, const Numbers& attention_gradient) {
    const int64_t wide = extent_.qkv_width(), narrow = extent_.attention_width();
    for_ranks([&](int64_t rank) {
      Rank& own = rows_[static_cast<size_t>(rank)];
      const int64_t rows = own.batch().tokens;
      own[kQkv] = take(qkv, wide, rank);
      own[kAttentionGradient] = take(attention_gradient, narrow, rank);
      own.make(kAttention, rows * narrow);
      own.make(kQkvGradient, rows * wide);
      own.make(kKeyGradient, rows * 2 * extent_.kv_width());
      for (const BlockValue value : {kLogSumExp, kDelta}) own.make(value, rows * extent_.heads);
      if (!exchanges()) return;
      const int64_t shared = std::max<int64_t>(1, ring(rank).rows_of(ring(rank).member));
      const int64_t parts = ring(rank).head_ranks();
      Rank& all = heads_[static_cast<size_t>(rank)];
      for (const BlockValue value : {kQkv, kQkvGradient}) all.make(value, shared * wide / parts);
      for (const BlockValue value : {kAttention, kAttentionGradient})
        all.make(value, shared * narrow / parts);
      all.make(kKeyGradient, shared * 2 * extent_.kv_width() / parts);
      for (const BlockValue value : {kLogSumExp, kDelta})
        all.make(value, shared * extent_.heads / parts);
    });
    forward();
    backward();
    Results results{Numbers(attention_gradient.size()), Numbers(qkv.size())};
    for_ranks([&](int64_t rank) {
      Rank& own = rows_[static_cast<size_t>(rank)];
      own[kQkvGradient] = with_keys(own);
      put(own[kAttention], narrow, rank, results.attention);
      put(own[kQkvGradient], wide, rank, results.qkv_gradient);
    });
    return results;
  }

  /// Of all tokens, in the order of documents and positions.
  std::vector<int64_t> tokens_of(int64_t rank) const {
    std::vector<int64_t> tokens;
    for (const sequence::Held& held : layout(rank).held) {
      const auto first = plan_.lengths.begin();
      const int64_t before = std::accumulate(first, first + held.document, int64_t{0});
      for (int64_t at = held.span.begin; at < held.span.end; ++at) tokens.push_back(before + at);
    }
    return tokens;
  }

 private:
  const sequence::RankLayout& layout(int64_t rank) const {
    return layouts_[static_cast<size_t>(rank)];
  }
  const sequence::RankGroup& ring(int64_t rank) const { return layout(rank).groups.front(); }
  bool exchanges() const { return ring(0).head_ranks() > 1; }
  void for_ranks(const std::function<void(int64_t)>& act) {
    for (int64_t rank = 0; rank < plan_.grid.ranks(); ++rank) act(rank);
  }
  Rank& attending(int64_t rank) {
    return exchanges() ? heads_[static_cast<size_t>(rank)] : rows_[static_cast<size_t>(rank)];
  }

  /// Every rank packs for every neighbour, and places what it has got.
  void exchange(RemapStep pack) {
    if (!exchanges()) return;
    const auto place = static_cast<RemapStep>(static_cast<int>(pack) + 1);
    const bool to_heads = pack == RemapStep::kPackQkv || pack == RemapStep::kPackAttentionGradient;
    const bool keys = pack == RemapStep::kPackQkv || pack == RemapStep::kPackQkvGradient;
    std::map<std::pair<int64_t, int64_t>, Numbers> messages;  // from, to
    const auto step = [&](RemapStep one, int64_t rank, int64_t neighbour, Numbers& moved) {
      const bool rows = to_heads == (one == pack);
      Rank& values = (rows ? rows_ : heads_)[static_cast<size_t>(rank)];
      SegmentCall call = values.call();
      call.give(kMovedRows, moved.data());
      values.block().exchange_heads(call, one, {0, neighbour});
    };
    for_ranks([&](int64_t rank) {
      for (int64_t neighbour = 0; neighbour < ring(rank).head_ranks(); ++neighbour) {
        const int64_t to = ring(rank).neighbours[static_cast<size_t>(neighbour)];
        const int64_t rows = to_heads ? ring(rank).rows : ring(rank).rows_of_neighbour(neighbour);
        Numbers& moved = messages[{rank, to}];
        moved.assign(
            static_cast<size_t>(rows * (keys ? extent_.qkv_width() : extent_.attention_width()) /
                                ring(rank).head_ranks()),
            std::nan(""));
        step(pack, rank, neighbour, moved);
      }
    });
    for_ranks([&](int64_t rank) {
      for (int64_t neighbour = 0; neighbour < ring(rank).head_ranks(); ++neighbour)
        step(place, rank, neighbour,
             messages[{ring(rank).neighbours[static_cast<size_t>(neighbour)], rank}]);
    });
  }

  void pack_keys() {
    for_ranks([&](int64_t rank) {
      attending(rank).make(kKeys, keys_of(rank, 0));
      attending(rank).block().pack_group(attending(rank).call(), {0, 0});
    });
  }
  int64_t keys_of(int64_t rank, int64_t round) const {
    return ring(rank).rows_of(ring(rank).holder(round)) * 2 * extent_.kv_width() /
           ring(rank).head_ranks();
  }
  void shift_keys() {
    std::vector<Numbers> next(rows_.size());
    for_ranks(
        [&](int64_t rank) { next[static_cast<size_t>(ring(rank).next)] = attending(rank)[kKeys]; });
    for_ranks([&](int64_t rank) { attending(rank)[kKeys] = next[static_cast<size_t>(rank)]; });
  }
  /// What a rank attends to of its own rows, which are none where heads are exchanged.
  void rows_alone(bool forward) {
    if (!exchanges()) return;
    for_ranks([&](int64_t rank) {
      Rank& own = rows_[static_cast<size_t>(rank)];
      own.make(kKeys, 1);
      if (forward)
        own.block().attend_group(own.call(), {1, 0});
      else
        own.block().attend_group_input(own.call(), {1, 0});
    });
  }

  void forward() {
    rows_alone(true);
    exchange(RemapStep::kPackQkv);
    pack_keys();
    for (int64_t round = 0; round < ring(0).size; ++round) {
      for_ranks([&](int64_t rank) {
        attending(rank).block().attend_group(attending(rank).call(), {0, round});
      });
      shift_keys();
    }
    exchange(RemapStep::kPackAttention);
  }

  /// Parts of sums go home at once, and are added there.
  void backward() {
    rows_alone(false);
    exchange(RemapStep::kPackAttentionGradient);
    pack_keys();
    std::vector<Numbers> home(rows_.size());
    for (int64_t round = 0; round < ring(0).size; ++round) {
      for_ranks([&](int64_t rank) {
        Rank& one = attending(rank);
        Numbers own = one[kKeyGradient];
        if (round > 0) one.make(kKeyGradient, keys_of(rank, round));
        const bool halves = round == 0 && ring(rank).size > 1;
        one.block().attend_group_input(
            one.call(),
            {0, round, halves ? sequence::OwnPairs::kAcross : sequence::OwnPairs::kAll});
        if (round == 0) return;
        const auto& ranks = ring(rank).ranks;
        const int64_t size = ring(rank).size;
        const int64_t at = (ring(rank).position + size - round) % size;
        Numbers& sum = home[static_cast<size_t>(ranks[static_cast<size_t>(at)])];
        if (sum.empty()) sum.assign(one[kKeyGradient].size(), 0.0);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[kKeyGradient][i];
        one[kKeyGradient] = own;
      });
      shift_keys();
    }
    for_ranks([&](int64_t rank) {
      Rank& one = attending(rank);
      if (ring(rank).size == 1) return;
      one.block().attend_group_input(one.call(), {0, 0, sequence::OwnPairs::kWithin});
      one[kGatheredKeyGradient] = home[static_cast<size_t>(rank)];
      one.block().add_group_gradient(one.call(), {0, ring(rank).size});
    });
    exchange(RemapStep::kPackQkvGradient);
  }

  /// Gradients of qkv, complete with those of keys and values.
  Numbers with_keys(Rank& rank) const {
    Numbers all = rank[kQkvGradient];
    const int64_t stride = extent_.qkv_width(), width = 2 * extent_.kv_width();
    for (int64_t row = 0; row < rank.batch().tokens; ++row)
      std::copy_n(rank[kKeyGradient].begin() + row * width, width,
                  all.begin() + row * stride + extent_.attention_width());
    return all;
  }
  Numbers take(const Numbers& all, int64_t width, int64_t rank) const {
    Numbers own;
    for (const int64_t token : tokens_of(rank))
      own.insert(own.end(), all.begin() + token * width, all.begin() + (token + 1) * width);
    own.resize(static_cast<size_t>(layout(rank).attended_rows() * width), 0.0);
    return own;
  }
  void put(const Numbers& own, int64_t width, int64_t rank, Numbers& all) const {
    int64_t row = 0;
    for (const int64_t token : tokens_of(rank))
      std::copy_n(own.begin() + row++ * width, width, all.begin() + token * width);
  }

  sequence::Plan plan_;
  ModelShape local_;
  BlockExtent extent_;
  std::unique_ptr<Model> model_;
  std::vector<sequence::RankLayout> layouts_;
  std::vector<Rank> rows_, heads_;  // by rank: of its own rows; of the rows of its run
};

sequence::Plan even(const std::vector<int64_t>& lengths, const sequence::RankGrid& grid,
                    int64_t head_ranks = 1) {
  sequence::Plan plan =
      sequence::baseline_plan(lengths, {grid, 1 << 20, 1, 1}, sequence::Baseline::kEven);
  plan.head_ranks = head_ranks;
  return plan;
}

const std::vector<Form> kForms = {Form{}, Form{.llama = true, .kv_heads = 4},
                                  Form{.llama = true, .kv_heads = 4, .window = 7}};

TEST(PlannedHeadsTest, ForwardsHaveTheBitsOfARingOfRunsAndGradientsThoseOfOneRank) {
  for (const Form& form : kForms)
    for (const auto& [nodes, per_node, heads] :
         {std::tuple(2, 2, 2), std::tuple(2, 4, 2), std::tuple(2, 4, 4), std::tuple(3, 2, 2)})
      for (const std::vector<int64_t>& lengths :
           {std::vector<int64_t>{47}, {48, 31}, {1, 40, 7, 13, 3}, {2}, {16, 15, 17}}) {
        const ModelShape shape = form.shape();
        SCOPED_TRACE(testing::Message()
                     << shape.family << ", " << nodes << " nodes of " << per_node << ", " << heads
                     << " heads, " << testing::PrintToString(lengths));
        const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
        const BlockExtent extent = block_extent(shape, 1, tokens, Dtype::kFloat64);
        const Numbers qkv = random(tokens * extent.qkv_width(), "test.qkv");
        const Numbers gradient = random(tokens * extent.attention_width(), "test.gradient");
        const Results got =
            Planned(shape, even(lengths, {nodes, per_node}, heads)).run(qkv, gradient);
        const Results runs =
            Planned(shape, even(lengths, {nodes, per_node / heads})).run(qkv, gradient);
        EXPECT_EQ(got.attention, runs.attention);
        const Results one = Planned(shape, even(lengths, {1, 1})).run(qkv, gradient);
        EXPECT_LE(distance(got.attention, one.attention), 1e-12);
        EXPECT_LE(distance(got.qkv_gradient, one.qkv_gradient), 1e-12);
      }
}

/// All tokens before those of the last run. Its two chunks are one for a plan, and two for the even
/// engine, which each of the others attends to or does not.
TEST(PlannedHeadsTest, ForwardsHaveTheBitsOfTheEvenEngineBeforeItsLastRun) {
  for (const Form& form : kForms)
    for (const auto& [heads, rings] : {std::pair{2, 2}, {2, 4}, {4, 2}, {4, 3}}) {
      const ModelShape shape = form.shape();
      SCOPED_TRACE(testing::Message() << shape.family << ", " << heads << " x " << rings);
      const BlockExtent extent = block_extent(shape, kSequences, kTokens, Dtype::kFloat64);
      const Numbers qkv = random(extent.rows * extent.qkv_width(), "test.qkv");
      const Numbers gradient = random(extent.rows * extent.attention_width(), "test.gradient");
      Planned planned(shape,
                      even(std::vector<int64_t>(kSequences, kTokens), {rings, heads}, heads));
      const Results got = planned.run(qkv, gradient);
      const Results want = HeadsRing(shape, heads, rings).run(qkv, gradient);
      const int64_t width = extent.attention_width(), chunk = kTokens / (2 * rings);
      int64_t same = 0;
      for (int64_t rank = 0; rank < heads * (rings - 1); ++rank)
        for (const int64_t token : planned.tokens_of(rank))
          for (int64_t column = token * width;
               token % kTokens < kTokens / 2 - chunk && column < (token + 1) * width;
               ++column, ++same)
            ASSERT_EQ(got.attention[static_cast<size_t>(column)],
                      want.attention[static_cast<size_t>(column)])
                << "rank " << rank << ", token " << token;
      EXPECT_EQ(same, kSequences * (kTokens / 2 - chunk) * width);
      EXPECT_LE(distance(got.attention, want.attention), 1e-12);
      EXPECT_LE(distance(got.qkv_gradient, want.qkv_gradient), 1e-12);
    }
}

}  // namespace
}  // namespace strait::model
