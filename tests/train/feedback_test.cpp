// Error feedback in reductions: against a plain form written out here, what is sent and what is
// left adding up to what was given, and what it costs and where it starts anew in training.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "strait/base/random.h"
#include "strait/codec/codec.h"
#include "tests/train/reduction.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

using test::owned_range;
using test::Reduced;
using test::ReductionCase;
using test::small_run;
using test::TemporaryFolder;
using test::train_small;

constexpr float kKeep = 0.8f;  // beta

float gradient(int64_t rank, int64_t round, int64_t element) {
  const RandomStream stream(11, "gradient" + std::to_string(rank));
  return static_cast<float>(stream.uniform(static_cast<uint64_t>(round * 100000 + element)) - 0.5);
}

/// x + e through a codec, e = beta e + (1 - beta) error; a buffer of floats for each piece.
std::vector<float> send(const codec::CodecSpec& spec, const float* x,
                        std::vector<float>& residual) {
  const int64_t count = static_cast<int64_t>(residual.size());
  std::vector<float> y(residual.size()), decoded(residual.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = residual[i] + x[i];
  std::vector<uint8_t> piece(static_cast<size_t>(codec::encoded_bytes(spec, count)));
  EXPECT_EQ(codec::encode(spec, {y.data(), Dtype::kFloat32, count}, piece), 0);
  codec::decode(spec, piece, {decoded.data(), Dtype::kFloat32, count});
  for (size_t i = 0; i < y.size(); ++i)
    residual[i] = kKeep * residual[i] + (1.0f - kKeep) * (y[i] - decoded[i]);
  return decoded;
}

/// One reduction over a node and then over the nodes, hop by hop, with all residuals of all ranks.
class PlainReduction {
 public:
  PlainReduction(const ReductionCase& c) : c_(c), spec_(codec::parse_codec(c.codec)) {}

  /// What rank r is left with, [rank].
  std::vector<std::vector<float>> reduce(int64_t round) {
    const int64_t g = c_.ranks_per_node, n = c_.nodes, world = g * n;
    std::vector<std::vector<float>> given(world), inner(world), result(world);
    for (int64_t rank = 0; rank < world; ++rank)
      for (int64_t i = 0; i < c_.elements; ++i) given[rank].push_back(gradient(rank, round, i));
    for (int64_t rank = 0; rank < world; ++rank)
      inner[rank] =
          sum_of({0, rank, rank / g * g, 1, g}, given, [](int64_t) { return int64_t{0}; });
    if (n == 1) return inner;
    for (int64_t rank = 0; rank < world; ++rank)
      result[rank] = sum_of({1, rank, rank % g, g, n}, inner,
                            [&](int64_t from) { return span_range(from % g).begin; });
    return result;
  }

 private:
  /// Elements of position `local` of a node: those of its ranks over all nodes.
  Range span_range(int64_t local) const {
    const int64_t last = (c_.nodes - 1) * c_.ranks_per_node + local;
    return {owned_range(c_.nodes, c_.ranks_per_node, c_.elements, local).begin,
            owned_range(c_.nodes, c_.ranks_per_node, c_.elements, last).end};
  }
  /// What `rank` sums up in the nth hop: of `size` senders from `first` on, `stride` apart.
  struct Hop {
    int nth;
    int64_t rank, first, stride, size;
  };
  template <class BeginOf>
  std::vector<float> sum_of(const Hop& hop, const std::vector<std::vector<float>>& from,
                            const BeginOf& begin_of) {
    const auto& [nth, rank, first, stride, size] = hop;
    const Range mine = nth == 0 ? span_range(rank % c_.ranks_per_node)
                                : owned_range(c_.nodes, c_.ranks_per_node, c_.elements, rank);
    std::vector<float> sum(static_cast<size_t>(mine.size()), 0.0f);
    for (int64_t k = 0; k < size && mine.size() > 0; ++k) {
      const int64_t sender = first + k * stride;
      std::vector<float>& residual = residuals_[{nth, sender, rank}];
      residual.resize(sum.size());
      const std::vector<float> got =
          send(spec_, from[sender].data() + mine.begin - begin_of(sender), residual);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = k == 0 ? got[i] : sum[i] + got[i];
    }
    return sum;
  }
  const ReductionCase& c_;
  codec::CodecSpec spec_;
  std::map<std::tuple<int, int64_t, int64_t>, std::vector<float>> residuals_;  // hop, from, to
};

TEST(Feedback, ReductionsEqualThePlainFormBitForBit) {
  for (const ReductionCase& c : std::vector<ReductionCase>{{2, 2, 333, "int4/16+ef"},
                                                           {1, 3, 100, "int4/64+ef"},
                                                           {3, 1, 77, "int8/32+ef"},
                                                           {3, 2, 500, "int4/32+paper+ef"},
                                                           {2, 3, 40, "int4/16+asymmetric+ef"}}) {
    const auto got = test::reduce_on_ranks(c, 4, gradient);
    PlainReduction plain(c);
    for (int64_t round = 0; round < 4; ++round) {
      const auto want = plain.reduce(round);
      for (size_t rank = 0; rank < want.size(); ++rank)
        EXPECT_EQ(got[rank].sums[round], want[rank])
            << c.codec << " on " << c.nodes << " x " << c.ranks_per_node << " rank " << rank;
    }
  }
}

// Sum of what came out + sum of all residuals / (1 - beta) = sum of what went in, by element. Each
// of the 12 rounds adds a few roundings of numbers below 8.
TEST(Feedback, WhatIsSentAndWhatIsLeftIsWhatWasGiven) {
  constexpr int64_t kRounds = 12;
  for (const bool sharded : {true, false}) {
    for (const auto& [nodes, per_node] :
         std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {3, 2}, {1, 4}}) {
      const ReductionCase c{nodes, per_node, 451, "int4/32+ef", sharded};
      const auto got = test::reduce_on_ranks(c, kRounds, gradient);
      std::vector<double> given(451, 0.0), left(451, 0.0), sent(451, 0.0), plain(451, 0.0);
      for (int64_t rank = 0; rank < nodes * per_node; ++rank) {
        const Reduced& r = got[static_cast<size_t>(rank)];
        for (int64_t i = 0; i < 451; ++i)
          for (int64_t round = 0; round < kRounds; ++round) given[i] += gradient(rank, round, i);
        // Residuals of the hops, where this rank holds them: whole, its node's part, its own.
        const auto add_from = [&](const std::vector<float>& residual, int64_t begin) {
          for (size_t i = 0; i < residual.size(); ++i) left[begin + i] += residual[i];
        };
        ASSERT_EQ(r.residuals.size(), sharded ? (nodes > 1 ? 2u : 1u) : 2u);
        add_from(r.residuals[0], 0);
        if (r.residuals.size() > 1) {
          const int64_t first = sharded ? rank % per_node : rank;
          add_from(r.residuals[1], sharded ? owned_range(nodes, per_node, 451, first).begin
                                           : owned_range(1, nodes * per_node, 451, first).begin);
        }
        if (!sharded && rank > 0) {
          EXPECT_EQ(r.sums, got[0].sums) << "ranks must agree on a sum";
          continue;
        }
        for (int64_t round = 0; round < kRounds; ++round)
          for (size_t i = 0; i < r.sums[round].size(); ++i)
            sent[r.range.begin + i] += r.sums[round][i];
      }
      double apart = 0;
      for (size_t i = 0; i < 451; ++i) {
        ASSERT_NEAR(sent[i] + left[i] / (1 - kKeep), given[i], kRounds * 64 * 8 * 0x1p-24) << i;
        apart = std::max(apart, std::abs(sent[i] - given[i]));
      }
      EXPECT_GT(apart, 1e-3) << "nothing was lost, so nothing was shown";
    }
  }
}

const std::string kTwoLevels =
    "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 10.0, latency_microseconds = 1.0 "
    "}, "
    "{ name = \"world\", size = 0, gb_per_second = 1.0, latency_microseconds = 5.0 }]";

class FeedbackTraining : public ::testing::Test {
 protected:
  strait::Run run_of(std::vector<std::string> sets) {
    sets.push_back(kTwoLevels);
    return small_run(folder_.path(), sets);
  }
  train::Outcome train_on(int64_t ranks, std::vector<std::string> sets,
                          const train::Hooks& hooks = {}) {
    strait::Run run = run_of(std::move(sets));
    run.output.run_dir = folder_.path() + "/" + std::to_string(number_++);
    const Job job = make_job(run, ranks);
    const train::Outcome outcome = test::outcome_of(job, hooks);
    shape_ = job.design.shape;
    return outcome;
  }
  TemporaryFolder folder_;
  ModelShape shape_;  // of the last run
  int number_ = 0;
};

TEST_F(FeedbackTraining, MovesTheSameBytesAndCountsItsMemory) {
  for (const char* preset : {"ddp", "zero1", "zero3", "hsdp", "zero++", "zero-topo"}) {
    const std::vector<std::string> sets = {std::string("placement.preset=") + preset,
                                           "train.steps=6", "train.micro_batch_size=3"};
    const auto with = [&](const char* codec) {
      std::vector<std::string> all = sets;
      all.push_back(std::string("placement.codecs.gradients=") + codec);
      return train_on(4, all);
    };
    const train::Outcome plain = with("int4/64"), kept = with("int4/64+ef");
    EXPECT_EQ(plain.traffic.payload_bytes(1), kept.traffic.payload_bytes(1)) << preset;
    EXPECT_NE(plain.parameter_hash, kept.parameter_hash) << preset;
    EXPECT_LT(kept.losses.back(), kept.losses.front()) << preset;
    // fp32 of what a rank encodes: whole units, then its part of the node's; a sum over replicas
    // once more.
    const std::string name = preset;
    const double share = name == "ddp" ? 1.25 : name == "hsdp" ? 1.75 : 1.5;
    for (int64_t rank = 0; rank < 4; ++rank) {
      const int64_t more = kept.state_bytes[rank].gradients - plain.state_bytes[rank].gradients;
      const double uneven = 4.0 * 128 * static_cast<double>(shape_.units.size());
      EXPECT_NEAR(static_cast<double>(more), 4 * share * static_cast<double>(shape_.parameters()),
                  uneven)
          << preset;
      EXPECT_NEAR(static_cast<double>(kept.pool_peak_bytes[rank]),
                  static_cast<double>(kept.predicted_peak_bytes[rank]),
                  0.05 * static_cast<double>(kept.predicted_peak_bytes[rank]))
          << preset;
    }
  }
}

// A step that all skip leaves no residual on any rank, and what was not finite does not live on in
// one.
TEST_F(FeedbackTraining, StartsAnewAfterASkippedStep) {
  std::atomic<int64_t> looked{0}, left{0};
  std::vector<std::set<void*>> used(4);  // by rank
  train::Hooks hooks;
  hooks.before_op = [&](int64_t rank, const runtime::Instance& instance) {
    const runtime::Bound* residual = instance.op->kernel == &strategy::kEncode
                                         ? instance.find_write(strategy::kEncodeResidual)
                                         : nullptr;
    const bool feeds = residual != nullptr;
    if (rank == 1 && instance.step == 2 && feeds)
      static_cast<float*>(instance.reads[0].data)[0] = std::numeric_limits<float>::infinity();
    // The first use of each residual after the skipped step.
    if (instance.step != 3 || !feeds || !used[rank].insert(residual->data).second) return;
    const float* values = static_cast<const float*>(residual->data);
    ++looked;
    for (int64_t i = 0; i < residual->bytes / 4; ++i) left += values[i] != 0;
  };
  const train::Outcome outcome =
      train_on(4,
               {"placement.preset=zero-topo", "placement.codecs.gradients=int4/64+ef",
                "train.non_finite=skip", "train.steps=6", "train.precision=fp32",
                "train.micro_batch_size=6"},
               hooks);
  EXPECT_GT(looked, 8);
  EXPECT_EQ(left, 0);
  for (const double loss : outcome.losses) EXPECT_TRUE(std::isfinite(loss));
}

TEST_F(FeedbackTraining, WeightsAreRefused) {
  for (const char* key : {"weights", "secondary", "update"}) {
    try {
      strategy::make_design(run_of({"placement.preset=zero-topo",
                                    std::string("placement.codecs.") + key + "=int8/64+ef"}),
                            4, 40);
      ADD_FAILURE() << key;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("nearest: \"int8/64\""), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace strait
