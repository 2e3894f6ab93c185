// Bytes of whole plans against the formulas of their groups; which rank has planned something else.
#include "strait/sequence/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace strait::sequence {
namespace {

Layer layer_of() { return {{8, 8, 4}, {2, 4}, 100, 40, 48}; }
PartitionOptions options_of(int64_t capacity) { return {{2, 4}, capacity, 100, 800}; }

/// Z5: short documents move nothing; one alone is a plain ring.
TEST(PlanReport, BytesAreThoseOfTheFormulas) {
  const Plan local = partition(std::vector<int64_t>(64, 50), options_of(1000));
  EXPECT_EQ(plan_traffic(local, layer_of()).inside, Traffic{});
  EXPECT_EQ(plan_traffic(local, layer_of()).between, Traffic{});
  const Plan alone = partition(std::vector<int64_t>{4001}, options_of(1000));
  const LevelTraffic ring = plan_traffic(alone, layer_of());
  EXPECT_EQ(ring.inside + ring.between, (Traffic{7 * 4001 * 64 * 2, 7 * 4001 * 64 * 6}));
  const std::vector<int64_t> leaving = bytes_between_nodes(alone, layer_of());
  EXPECT_EQ(leaving[0] + leaving[1], ring.between.forward + ring.between.backward);
}

/// However a ring crosses, nodes send as much; over proxies or in several orders their links share
/// it.
TEST(PlanReport, LinksShareWhatCrosses) {
  const auto sum = [](const std::vector<int64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  };
  const auto idle = [](const std::vector<int64_t>& bytes) { return std::ranges::count(bytes, 0); };
  for (const int64_t length : {4000, 4001, 77}) {
    SCOPED_TRACE(length);
    Plan plan = baseline_plan(std::vector<int64_t>{length}, options_of(1000), Baseline::kEven);
    const LevelTraffic direct = plan_traffic(plan, layer_of());
    const std::vector<int64_t> alone = bytes_over_links(plan, layer_of());
    EXPECT_EQ(sum(alone), direct.between.forward + direct.between.backward);
    EXPECT_EQ(idle(alone), 6);
    plan.rotations = 4;
    const LevelTraffic rotated = plan_traffic(plan, layer_of());
    const std::vector<int64_t> parts = bytes_over_links(plan, layer_of());
    EXPECT_EQ(sum(parts), rotated.between.forward + rotated.between.backward);
    EXPECT_EQ(rotated.inside + rotated.between, direct.inside + direct.between);
    EXPECT_EQ(idle(parts), 0);
    if (length == 4000) {  // 500 tokens on each rank
      EXPECT_EQ(parts, std::vector<int64_t>(8, alone[3] / 4));
      EXPECT_EQ(rotated.between, direct.between);
    }
    plan.rotations = 3;  // heads 0 and 1, 2 to 4, 5 to 7; first ranks 0, 1 and 2 of a node
    const std::vector<int64_t> uneven = bytes_over_links(plan, layer_of());
    if (length == 4000) {
      for (const size_t node : {0, 4}) {
        EXPECT_EQ(uneven[node + 3], alone[3] / 8 * 2);
        EXPECT_EQ(uneven[node + 0], alone[3] / 8 * 3);
        EXPECT_EQ(uneven[node + 1], alone[3] / 8 * 3);
        EXPECT_EQ(uneven[node + 2], 0);
      }
    }
    plan.rotations = 1;
    plan.proxies = 4;
    plan.pieces = 2;
    const std::vector<int64_t> routed = bytes_over_links(plan, layer_of());
    EXPECT_EQ(sum(routed), sum(alone));
    EXPECT_EQ(plan_traffic(plan, layer_of()).between, direct.between);
    EXPECT_EQ(idle(routed), 0);
    const LevelTraffic over_four = plan_traffic(plan, layer_of());
    plan.rotations = plan.proxies = 2;
    const std::vector<int64_t> both = bytes_over_links(plan, layer_of());
    const LevelTraffic of_both = plan_traffic(plan, layer_of());
    EXPECT_EQ(sum(both), of_both.between.forward + of_both.between.backward);
    EXPECT_EQ(idle(both), 0);
    EXPECT_LT(of_both.inside.forward, over_four.inside.forward);
    if (length == 4000) {
      EXPECT_EQ(both, std::vector<int64_t>(8, alone[3] / 4));
      // Half of what crosses goes to a proxy, in both nodes of each of two hops.
      EXPECT_EQ(of_both.inside.forward - direct.inside.forward, direct.between.forward);
    }
  }
}

TEST(PlanReport, EnginesOfBaselinesAddUp) {
  const std::vector<int64_t> lengths = {160, 80, 16};
  for (const Baseline baseline : {Baseline::kEven, Baseline::kGathered, Baseline::kHeads}) {
    const LevelTraffic got =
        plan_traffic(baseline_plan(lengths, options_of(1000), baseline), layer_of());
    const std::vector<int64_t> tokens(8, 32);
    const Traffic want = baseline == Baseline::kEven ? ring_traffic(tokens, {8, 8, 4}, {2, 4})
                         : baseline == Baseline::kGathered
                             ? gathered_traffic(tokens, {8, 8, 4}, {2, 4})
                             : heads_traffic(tokens, {8, 8, 4}, {2, 4});
    EXPECT_EQ(got.inside + got.between, want) << baseline_name(baseline);
    EXPECT_GT(got.between.forward, 0);
  }
}

TEST(PlanReport, SaysWhatStandsWhere) {
  const std::vector<int64_t> lengths = {3000, 300, 50, 50, 50};
  const Plan plan = partition(lengths, options_of(1000));
  const Json json =
      plan_json(plan, layer_of(),
                {.attention_slowest = 0.5, .attention_mean = 0.25, .remap = 1, .slowest = 2}, 3);
  const auto count = [&](const char* zone) {
    return json.find("documents")->find(zone)->as_integer();
  };
  EXPECT_EQ(count("local") + count("intra") + count("inter"), 5);
  EXPECT_EQ(count("inter"), 1);
  EXPECT_EQ(count("intra"), 1);
  EXPECT_LE(json.find("tokens")->find("most")->as_integer(), 1000);
  const auto tokens = [&](const char* zone) {
    int64_t sum = 0;
    for (const Json& rank : json.at("ranks").at(zone).at("tokens").as_array())
      sum += rank.as_integer();
    return sum;
  };
  EXPECT_EQ(tokens("local"), 3 * 50);
  EXPECT_EQ(tokens("intra"), 300);
  EXPECT_EQ(tokens("inter"), 3000);
  EXPECT_EQ(json.at("ranks").at("inter").at("pairs").size(), 8);
  EXPECT_EQ(json.find("predicted")->find("slowest_seconds")->as_number(), 3 * 0.5);
  EXPECT_EQ(json.find("predicted")->find("layers_seconds")->as_number(), 3 * 3.0);
  EXPECT_EQ(json.at("bytes_between_nodes").at("forward").as_integer(),
            3 * plan_traffic(plan, layer_of()).between.forward);
  EXPECT_THAT(plan_text(json),
              ::testing::HasSubstr("3 documents local, 1 inside nodes, 1 between"));
  EXPECT_EQ(json.find("hash")->as_string().size(), 16u);
  Json of_rows = json;
  of_rows["row"] = 1;
  of_rows["rows"] = 1;
  EXPECT_EQ(plan_text(of_rows), plan_text(json));
  of_rows["rows"] = 2;
  EXPECT_EQ(plan_text(of_rows), "row 1 of 2: " + plan_text(json));
}

/// What linear modules do, before and after tokens have moved.
TEST(PlanReport, SaysHowEvenLinearModulesAre) {
  Plan plan =
      baseline_plan(std::vector<int64_t>{900, 300, 300, 300}, options_of(1000), Baseline::kPacked);
  const auto linear = [&] { return plan_json(plan, layer_of(), {}, 3).at("linear"); };
  EXPECT_FALSE(linear().at("remapped").as_bool());
  EXPECT_EQ(linear().at("slowest_over_mean").as_number(), 4.0);  // 900 of 1800 on 8 ranks
  EXPECT_EQ(linear().at("moved_tokens").as_integer(), 0);
  const std::vector<int64_t> before = bytes_between_nodes(plan, layer_of());
  plan.remapping = Remapping::kQkv;
  EXPECT_TRUE(linear().at("remapped").as_bool());
  EXPECT_EQ(linear().at("remap").as_string(), "qkv");
  EXPECT_EQ(linear().at("slowest_over_mean").as_number(), 1.0);
  EXPECT_EQ(linear().at("slowest_over_mean_of_attention").as_number(), 4.0);
  const int64_t moved = linear().at("moved_tokens").as_integer();
  EXPECT_EQ(moved, 900 - 225 + 3 * (300 - 225));
  const auto bytes = [&](const char* level) {
    return linear().at(level).at("forward").as_integer();
  };
  EXPECT_EQ(bytes("bytes_inside_nodes") + bytes("bytes_between_nodes"),
            3 * moved * (2 * 32 + 2 * 32) * 2);
  const std::vector<int64_t> after = bytes_between_nodes(plan, layer_of());
  EXPECT_EQ(3 * (after[0] - before[0]), bytes("bytes_between_nodes"));
  EXPECT_THAT(plan_text(plan_json(plan, layer_of(), {}, 3)),
              ::testing::HasSubstr("remapped (qkv): slowest over mean linear tokens 1.000, of 4"));
  plan.remapping = Remapping::kResidual;
  EXPECT_EQ(linear().at("remap").as_string(), "residual");
  EXPECT_EQ(linear().at("moved_tokens").as_integer(), moved);
  EXPECT_EQ(bytes("bytes_inside_nodes") + bytes("bytes_between_nodes"), 3 * moved * 2 * 48 * 2);
  const std::vector<int64_t> stream = bytes_between_nodes(plan, layer_of());
  EXPECT_EQ(3 * (stream[0] - before[0]), bytes("bytes_between_nodes"));
}

/// Z8: a rank that has read another length is named.
TEST(PlanReport, NamesTheRankThatPlannedSomethingElse) {
  std::vector<int64_t> lengths = {3000, 300, 50};
  std::vector<uint64_t> hashes(4, plan_hash(partition(lengths, options_of(1000))));
  EXPECT_EQ(find_disagreement(hashes), "");
  lengths[1] = 301;
  hashes[2] = plan_hash(partition(lengths, options_of(1000)));
  EXPECT_EQ(
      find_disagreement(hashes),
      "rank 2 has planned another batch than the other 3: the lengths of its documents or the "
      "options differ");
  hashes[0] = 1;
  EXPECT_EQ(find_disagreement(hashes).substr(0, 15), "ranks 0, 2 have");
}

}  // namespace
}  // namespace strait::sequence
