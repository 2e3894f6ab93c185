// Prices of plans against closed forms and published figures.
#include "strait/sequence/price.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "strait/data/lengths.h"
#include "tests/sanitized.h"

namespace strait::sequence {
namespace {

/// 16 GPUs of 2 nodes, 4 links of 200 Gbit/s between them and 200 GB/s inside; LLaMA 3B. The GPU is
/// taken at 60 % of its peak in attention, 50 % in products.
Machine published_machine() {
  return {0.6 * 312e12, 128, 0.5 * 312e12, {1 / 200e9, 1 / 25e9, 5e-6, 1e-5}, 4};
}
Layer published_layer() {
  return {{32, 32, 100}, {2, 2}, 2 * 12 * 3200.0 * 3200, 2 * 4 * 3200.0 * 3200, 3200};
}

TEST(PriceTest, ALoneRingIsTheSumOfItsRounds) {
  const Machine machine{1e9, 0, 1e9, {1e-9, 1e-7, 0, 0}, 1};
  const Layer layer{{2, 1, 4}, {4, 4}, 10};
  const std::vector<int64_t> lengths = {4000};
  const Plan plan = baseline_plan(lengths, {{2, 2}, 4000, 1, 1}, Baseline::kEven);
  const double round = 2 * 8 * 1000.0 * 1000 / 1e9;          // 2 h n^2 / F
  const double keys = 1000 * 2 * 4 * 4 * 1e-7, sums = keys;  // n 2k e b
  const Price cost = price(plan, machine, layer, {});
  // Keys in three rounds, sums one round behind; beside the first and the last hop of a backward
  // stands half a round.
  EXPECT_NEAR(cost.attention_slowest,
              round + 3 * std::max(round, keys) + 2.5 * round + std::max(1.25 * round, keys) +
                  2 * std::max(2.5 * round, keys + sums) + std::max(1.25 * round, sums),
              1e-9);
  EXPECT_NEAR(cost.linear_slowest, 3 * 10 * 1000 / 1e9, 1e-12);
  EXPECT_EQ(cost.attention_mean, cost.attention_slowest);
}

/// Every query's tile on the diagonal is worked on whole, on one rank or another.
TEST(PriceTest, WorkIsThatOfTheDocumentHoweverItIsSplit) {
  const Machine machine{1e9, 64, 1e9, {}, 1};
  const Layer layer{{4, 4, 4}, {4, 4}, 10};
  const std::vector<int64_t> lengths = {4000};
  const double all = 3.5 * 2 * 16 * 4000.0 * 4000 / 1e9 * 4064 / 4000;
  for (const int64_t per_node : {2, 4}) {
    Plan plan = baseline_plan(lengths, {{2, per_node}, 4000, 1, 1}, Baseline::kEven);
    for (const int64_t heads : {1, 2}) {
      plan.head_ranks = heads;
      EXPECT_NEAR(price(plan, machine, layer, {}).computing_slowest,
                  all / static_cast<double>(2 * per_node), 1e-9);
    }
  }
}

/// Chunks of a token each: calls for them cost more than their pairs do.
TEST(PriceTest, ShortChunksCostTheirCalls) {
  Machine machine{1e9, 64, 1e9, {}, 1};
  machine.call_pairs = 100;
  const Layer layer{{4, 4, 4}, {4, 4}, 10};
  const double pair_seconds = 3.5 * 4 * 16 / 1e9;
  const auto computing = [&](int64_t ranks) {
    const Plan plan = baseline_plan(std::vector<int64_t>{16}, {{1, ranks}, 16, 1, 1},
                                    ranks == 1 ? Baseline::kPacked : Baseline::kEven);
    return price(plan, machine, layer, {}).computing_slowest;
  };
  EXPECT_NEAR(computing(1), pair_seconds * (16 * 32 / 2 + 100), 1e-12);
  EXPECT_NEAR(computing(8), pair_seconds * (2 * 17 / 2 + 100 * 17), 1e-12);
}

/// The cheapest, and where no ring crosses nodes the first.
TEST(PriceTest, HeadsAreExchangedWhereThatIsCheaper) {
  const Layer layer{{4, 4, 4}, {4, 4}, 10};
  const std::vector<int64_t> lengths = {4000};
  const PriceOptions options{.head_ranks = {1, 2, 4}};
  for (const double between : {0.0, 1e-6})
    for (const int64_t nodes : {1, 2}) {
      const Machine machine{1e9, 64, 1e9, {1e-9, between, 1e-5, 1e-5}, 4};
      Plan plan = baseline_plan(lengths, {{nodes, 4}, 4000, 1, 1}, Baseline::kEven);
      const Price least = choose_heads(plan, machine, layer, options);
      EXPECT_EQ(plan.head_ranks, nodes == 2 && between > 0 ? 4 : 1);
      for (const int64_t heads : options.head_ranks) {
        Plan other = plan;
        other.head_ranks = heads;
        EXPECT_LE(least.layer(), price(other, machine, layer, options).layer());
      }
    }
}

/// fp32 at 50 GFLOP/s hides from 1,600 tokens per rank on at 1 Gbit/s, 16,000 at 100 Mbit/s.
TEST(PriceTest, HidingThresholdsAreThoseOfTheClosedForm) {
  const Machine machine{50e9, 0, 50e9, {}, 1};
  const Layer layer{{8, 8, 64}, {4, 4}, 0};
  EXPECT_NEAR(hiding_tokens(machine, layer, 8 / 1e9), 1600, 1e-6);
  EXPECT_NEAR(hiding_tokens(machine, layer, 8 / 1e8), 16000, 1e-6);
}

/// Packed documents of 900 and 100 tokens on two ranks of a node: 400 tokens move.
TEST(PriceTest, RemappedTokensCostTheirMovesAndWhatStaysUneven) {
  const RankGrid grid{1, 2};
  const Layer layer{{8, 2, 4}, {4, 4}, 96, 24, 32};
  const std::vector<int64_t> lengths = {900, 100};
  const Plan plan = baseline_plan(lengths, {grid, 1000, 1 << 20, 1 << 20}, Baseline::kPacked);
  const auto priced = [&](const PriceOptions& options, double byte_seconds, double latency) {
    return price(plan, {1e9, 0, 1e6, {byte_seconds, 0, latency, 0}, 1}, layer, options);
  };
  const auto as = [&](Remapping remapping, double byte_seconds, double latency = 0) {
    return priced({.remapping = remapping}, byte_seconds, latency);
  };
  EXPECT_NEAR(as(Remapping::kNone, 1).linear_slowest, 3 * 96e-6 * 900, 1e-12);
  EXPECT_NEAR(as(Remapping::kQkv, 1).linear_slowest, 3 * 96e-6 * 500, 1e-12);
  EXPECT_NEAR(as(Remapping::kResidual, 1).linear_slowest, 3 * (72e-6 * 500 + 24e-6 * 900), 1e-12);
  // Forward and backward; of the residual stream in the backward behind gradients of weights.
  EXPECT_EQ(as(Remapping::kNone, 1e-6).remap, 0);
  EXPECT_NEAR(as(Remapping::kQkv, 1e-6).remap, 2e-6 * 400 * (2 * 32 + 2 * 8) * 4, 1e-12);
  const double stream = 2e-6 * 400 * 2 * 32 * 4;
  EXPECT_NEAR(as(Remapping::kResidual, 1e-6).remap, stream - 72e-6 * 500 - 24e-6 * 900, 1e-12);
  EXPECT_NEAR(as(Remapping::kResidual, 1e-8).remap, 1e-2 * stream / 2, 1e-12);
  EXPECT_NEAR(as(Remapping::kQkv, 0, 1).remap, 4, 1e-12);
  // Copies on either side of every move, read and written, which nothing hides; of the residual
  // stream zeros in place of a gradient that has left.
  const auto copies = [&](Remapping remapping) {
    const Machine machine{1e9, 0, 1e6, {}, 1, 1e9};
    return price(plan, machine, layer, {.remapping = remapping}).remap;
  };
  EXPECT_EQ(copies(Remapping::kNone), 0);
  EXPECT_NEAR(copies(Remapping::kQkv), 2 * 2e-9 * 400 * (2 * 32 + 2 * 8) * 4, 1e-12);
  EXPECT_NEAR(copies(Remapping::kResidual), 2 * 2e-9 * 400 * 2 * 32 * 4 + 1e-9 * 400 * 32 * 4,
              1e-12);
  // Free moves: all even. On slower links fewer numbers, on the slowest none.
  std::vector<Remapping> taken;
  for (const double byte_seconds : {0.0, 3e-7, 1e-5}) {
    const Price chosen = priced({.remaps = true}, byte_seconds, 0);
    taken.push_back(chosen.remapping);
    for (const Remapping other : {Remapping::kNone, Remapping::kQkv, Remapping::kResidual})
      EXPECT_LE(chosen.layer(), as(other, byte_seconds).layer());
  }
  EXPECT_EQ(taken,
            (std::vector<Remapping>{Remapping::kQkv, Remapping::kResidual, Remapping::kNone}));
}

/// Ranks of no common ring wait for nobody: who attends longest may have fewer tokens than others.
TEST(PriceTest, ALayerTakesAsLongAsTheRankThatHasMostToDo) {
  const RankGrid grid{1, 2};
  const Machine machine{1e9, 0, 1e6, {1, 0, 0, 0}, 1};
  const Layer layer{{8, 2, 4}, {4, 4}, 100};
  const std::vector<int64_t> lengths = {900, 300, 300, 300, 300};
  Plan plan{
      grid, lengths, {{.ranks = {0}, .documents = {0}}, {.ranks = {1}, .documents = {1, 2, 3, 4}}}};
  const double square = 3.5 * 2 * 32 / 1e9, token = 3 * 100 / 1e6;
  const Price cost = price(plan, machine, layer, {});
  EXPECT_NEAR(cost.attention_slowest, square * 900 * 900, 1e-12);
  EXPECT_NEAR(cost.linear_slowest, token * 1200, 1e-12);
  EXPECT_NEAR(cost.layer(), std::max(square * 810000 + token * 900, square * 360000 + token * 1200),
              1e-12);
  EXPECT_LT(cost.layer(), 0.9 * (cost.attention_slowest + cost.linear_slowest));
}

/// Where tokens move at no price that pays, ranks have as much to do without any that moves.
TEST(PriceTest, TokensCountInTheBalance) {
  Machine machine = published_machine();
  machine.links.between_byte_seconds *= 100;
  machine.links.inside_byte_seconds *= 100;
  const Layer layer = published_layer();
  const RankGrid grid{1, 8};
  const double tokens = token_squares(machine, layer);
  // Of a document of so many tokens attention and the rest take as long.
  const auto length = static_cast<int64_t>(std::llround(tokens));
  machine.tile_tokens = 0;
  const Price alone =
      price(baseline_plan(std::vector<int64_t>{length}, {{1, 1}, length, 1, 1}, Baseline::kPacked),
            machine, layer, {});
  EXPECT_NEAR(alone.attention_slowest / alone.linear_slowest, 1, 1e-3);
  double by_squares = 0, chosen = 0;
  for (uint64_t number = 0; number < 20; ++number) {
    const std::vector<int64_t> lengths =
        LengthDistribution("corpus", 100 + number, 0.5, 8192).batch(0, 8 * 8192);
    const PartitionOptions options{grid, 16384, 8192, 8192};
    by_squares += price(partition(lengths, options), machine, layer, {.remaps = true}).layer();
    chosen += choose(lengths, options, machine, layer, {.remaps = true, .rings_only = true})
                  .price.layer();
  }
  EXPECT_LT(chosen, 0.9 * by_squares);
}

std::vector<int64_t> corpus_batch(uint64_t number, int64_t tokens, int64_t longest) {
  return LengthDistribution("corpus", 100 + number, 1, longest).batch(0, tokens);
}

/// Z9: never dearer than a baseline that fits; near the bound where nothing binds.
TEST(PriceTest, TheChosenPlanIsAtMostEveryBaseline) {
  const Machine machine = published_machine();
  const Layer layer = published_layer();
  const RankGrid grid{2, 8};
  for (uint64_t number = 0; number < static_cast<uint64_t>(test::repetitions(1000, 100));
       ++number) {
    const std::vector<int64_t> lengths = corpus_batch(number, 16 * 8192, 32768);
    const PartitionOptions options = default_thresholds(machine, layer, grid, 16384);
    const PriceOptions all{true, true, true};
    const Choice choice = choose(lengths, options, machine, layer, all);
    ASSERT_TRUE(fits(choice.plan, 16384));
    for (int i = 0; i < kNumBaselines; ++i) {
      const Plan plan = baseline_plan(lengths, options, static_cast<Baseline>(i));
      if (static_cast<Baseline>(i) != Baseline::kHeads && fits(plan, 16384)) {
        ASSERT_LE(choice.price.layer(), price(plan, machine, layer, all).layer());
      }
    }
  }
}

TEST(PriceTest, SquaresAreBalancedWithinFourThirdsWhereNothingBinds) {
  std::vector<double> ratios;
  for (uint64_t number = 0; number < static_cast<uint64_t>(test::repetitions(1000, 100));
       ++number) {
    const std::vector<int64_t> lengths = corpus_batch(number, 8 * 65536, 8192);
    double bound = 0, longest = 0;
    for (const int64_t length : lengths) {
      bound += static_cast<double>(causal_pairs(length)) / 8;
      longest = std::max(longest, static_cast<double>(causal_pairs(length)));
    }
    if (longest > bound) continue;
    int64_t most = 0;
    for (const Load& load : loads(partition(lengths, {{2, 4}, 1 << 20, 1 << 20, 1 << 20})))
      most = std::max(most, load.pairs);
    ratios.push_back(static_cast<double>(most) / bound);
  }
  ASSERT_GT(ratios.size(), static_cast<size_t>(test::repetitions(900, 90)));
  std::ranges::sort(ratios);
  EXPECT_LE(ratios.back(), 1.34);
  EXPECT_LE(ratios[ratios.size() / 2], 1.05);
}

/// The ablation that was published on long texts: routing < engine < both < with remapping, engine
/// 3.2 times and with routing 3.51 times the even layout, here within a factor 1.3. 64k tokens on
/// 16 ranks are the published batch; the capacity, one and a half of the mean, is ours: a tighter
/// one splits more, so that routing alone gains more than the engine alone.
TEST(PriceTest, TheAblationHasItsOrder) {
  const Machine machine = published_machine();
  const Layer layer = published_layer();
  const RankGrid grid{2, 8};
  double even = 0, routed = 0, engine = 0, both = 0, remapped = 0;
  for (uint64_t number = 0; number < 60; ++number) {
    const std::vector<int64_t> lengths = corpus_batch(number, 65536, 65536);
    if (lengths.empty()) continue;
    const PartitionOptions options = default_thresholds(machine, layer, grid, 6144);
    const Plan spread = baseline_plan(lengths, options, Baseline::kEven);
    even += price(spread, machine, layer, {}).layer();
    routed += price(spread, machine, layer, {.routes = true}).layer();
    const auto zones = [&](const PriceOptions& with) {
      return price(partition(lengths, options), machine, layer, with).layer();
    };
    engine += zones({.fills = true});
    both += zones({.routes = true, .fills = true});
    remapped += zones({.routes = true, .fills = true, .remaps = true});
  }
  EXPECT_LT(even / routed, even / engine);
  EXPECT_LT(even / engine, even / both);
  EXPECT_LT(even / both, even / remapped);
  EXPECT_GT(even / engine, 3.2 / 1.3);
  EXPECT_LT(even / engine, 3.2 * 1.3);
  EXPECT_GT(even / both, 3.51 / 1.3);
  EXPECT_LT(even / both, 3.51 * 1.3);
}

/// Z13 with everything that choosing takes, in processor time of the fastest of several runs.
TEST(PriceTest, ChoosingFor10000DocumentsOn1024RanksTakesFiftyMilliseconds) {
  const LengthDistribution corpus("corpus", 3, 1, 65536);
  std::vector<int64_t> lengths;
  for (uint64_t i = 0; i < 10000; ++i) lengths.push_back(corpus.length(i));
  const Machine machine = published_machine();
  const Layer layer = published_layer();
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  // Rounding alone gives a rank up to two tokens per document when all are spread.
  const PartitionOptions options =
      default_thresholds(machine, layer, {128, 8}, 3 * tokens / 1024 + 20000);
  double best = 1e9;
  for (int run = 0; run < 7; ++run) {
    timespec begin{}, end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    const Choice choice = choose(lengths, options, machine, layer, {true, true, true});
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    EXPECT_FALSE(choice.plan.groups.empty());
    best = std::min(best, static_cast<double>(end.tv_sec - begin.tv_sec) +
                              1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec));
  }
  RecordProperty("milliseconds", std::to_string(best * 1e3));
  EXPECT_LT(best, 0.05 * test::kSlowdown);
}

}  // namespace

}  // namespace strait::sequence
