// Which policy plan chooses for a link, against every row composed and simulated by itself.
#include "strait/plan/policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "strait/base/errors.h"
#include "strait/cli/policy_table.h"
#include "strait/config/parse.h"
#include "strait/config/print.h"
#include "strait/config/validate.h"
#include "strait/plan/codecs.h"
#include "strait/plan/trials.h"
#include "strait/predict/predict.h"
#include "tests/plan/linked_pairs.h"
#include "tests/sanitized.h"

namespace strait::plan {
namespace {

using Sets = std::vector<std::string>;

/// Over links of `gb_per_second` between pairs.
Run linked(const std::string& gb_per_second, const Sets& sets = {}) {
  Sets all = {"plan.utilization=0.95", "plan.search=sync", "train.global_batch_size=48",
              "train.micro_batch_size=12"};
  all.insert(all.end(), sets.begin(), sets.end());
  return test::linked_pairs("gb_per_second = 10.0, latency_microseconds = 1.0",
                            "gb_per_second = " + gb_per_second + ", latency_microseconds = 100.0",
                            all);
}

SearchResult searched(const std::string& gb_per_second, const Sets& sets = {}) {
  return search_policies(linked(gb_per_second, sets), 4, 65);
}

/// What counts against a candidate: measured costs before extrapolated ones, unknown ones last.
double disadvantage(const Candidate& candidate) {
  const std::optional<QualityCost>& cost = candidate.policy->quality;
  if (!cost) return 200;
  return std::max(0.0, cost->known.gap_nats) + (cost->extrapolated ? 100 : 0);
}

/// What a message must say.
std::string refusal(const Run& run, int64_t ranks = 4) {
  try {
    search_policies(run, ranks, 65);
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "plan.utilization");
    return error.what();
  }
  return "";
}

TEST(Policies, FastLinksNeedNone) {
  const SearchResult result = searched("1000.0");
  EXPECT_FALSE(result.candidates.front().design.policy.local_steps());
  EXPECT_GE(result.candidates.front().policy->utilization, 0.95);
}

TEST(Policies, SlowLinksTakeTheLeastCostThatReachesTheTarget) {
  const SearchResult result = searched("0.002");
  const Candidate& best = result.candidates.front();
  ASSERT_TRUE(best.design.policy.local_steps());
  ASSERT_GE(best.policy->utilization, 0.95);
  bool short_of_it = false;
  for (const Candidate& other : result.candidates) {
    const bool reaches = other.policy->utilization >= 0.95;
    if (reaches) {
      EXPECT_GE(disadvantage(other), disadvantage(best));
    }
    EXPECT_FALSE(reaches && short_of_it) << "those that fall short come last";
    short_of_it = short_of_it || !reaches;
  }
  EXPECT_TRUE(short_of_it);
}

TEST(Policies, EveryRowIsTriedForEveryKindOfReplica) {
  const SearchResult result = searched("0.002");
  std::set<std::string> described;
  for (const Candidate& one : result.candidates)
    described.insert(one.design.policy.describe() + std::to_string(one.design.policy.replicas));
  const size_t local = policy_table().size() - 1;
  EXPECT_EQ(result.candidates.size(), 1 + 2 * local);  // every step; single ranks and pairs
  EXPECT_EQ(described.size(), result.candidates.size());
  EXPECT_EQ(searched("0.002", {"sync.replica=pair"}).candidates.size(), 1 + local);
}

/// Codecs in every step are a row of their own, and what the baseline is leaves numbers alone.
TEST(Policies, EveryStepInCodecsIsTriedToo) {
  const SearchResult result =
      searched("0.002", {"plan.search=placement,codecs,sync", "sync.replica=none"});
  std::vector<double> costs;
  for (const Candidate& one : result.candidates) {
    if (one.design.policy.local_steps()) {
      EXPECT_FALSE(compresses(one.design)) << one.design.placement.describe();
      continue;
    }
    ASSERT_TRUE(one.policy->quality);
    costs.push_back(one.policy->quality->known.gap_nats);
    EXPECT_EQ(compresses(one.design), costs.back() > 0) << one.design.placement.describe();
    EXPECT_TRUE(searches(one.design.run, "codecs")) << "what is written searches what the file did";
  }
  std::ranges::sort(costs);
  EXPECT_EQ(costs.size(), 2U);
  EXPECT_EQ(costs.front(), 0);
  EXPECT_LT(costs.back(), 0.03);
}

/// The figures are those of the run file that plan writes, composed by itself.
TEST(Policies, FiguresAreThoseOfTheRunThatIsWritten) {
  for (const Candidate& one : searched("0.002").candidates) {
    const strait::Run written = parse_run(print_run(one.design.run), "best.toml", {});
    const strategy::Design design = strategy::make_design(written, 4, 65);
    EXPECT_EQ(design.policy.describe(), one.design.policy.describe());
    EXPECT_EQ(design.placement.describe(), one.design.placement.describe());
    const double seconds = predict::simulate(design).seconds;
    EXPECT_EQ(seconds, one.simulated.seconds);
    strait::Run unlimited = written;
    for (LevelOptions& level : unlimited.cluster.levels)
      level.gb_per_second = 1e12, level.latency_microseconds = 0;
    const double free = predict::simulate(strategy::make_design(unlimited, 4, 65)).seconds;
    EXPECT_NEAR(one.policy->utilization, free / seconds, 1e-6) << design.policy.describe();
  }
}

/// What is called measured runs as it was measured (bench/records).
TEST(Policies, TheOuterOptimizerIsThatOfTheFigure) {
  const SearchResult result = searched("0.002", {"sync.replica=none"});
  for (const Candidate& one : result.candidates) {
    const strategy::Policy& policy = one.design.policy;
    const strategy::OuterRule& outer = policy.outer;
    if (policy.name == "streaming-diloco") {
      EXPECT_EQ(outer.learning_rate, 0.7);
    }
    if (policy.name == "co2") {
      EXPECT_EQ(outer.clip, 0.01);
    }
    if (policy.eager) {
      EXPECT_EQ(outer.momentum, 0) << "late results ask for little momentum";
      EXPECT_GT(one.policy->quality->known.gap_nats, 0.05) << "of models as small";
    }
  }
}

TEST(Policies, OneFragmentIsInFlight) {
  const SearchResult result = searched("0.002", {"sync.replica=none"});
  for (const Candidate& one : result.candidates) {
    const strategy::Policy& policy = one.design.policy;
    if (policy.name != "streaming-diloco" || policy.codec.kind != codec::CodecKind::kNone) continue;
    std::vector<int64_t> elements(static_cast<size_t>(policy.fragments));
    for (const auto& unit : one.design.shape.units)
      elements[policy.fragment_of(unit.name, one.design.shape.options.layers)] += unit.elements;
    ASSERT_EQ(policy.fragments, 2);
    const auto most = static_cast<double>(*std::ranges::max_element(elements));
    // All-reduced over four replicas, with 16 bytes of scalars each; units are padded a little.
    const double sent = 2.0 * 3 / 4 * 4 * most + 16;
    EXPECT_NEAR(static_cast<double>(one.policy->peak_bytes_in_flight), sent, 0.002 * sent);
  }
}

TEST(Policies, WhatCannotVaryIsRefused) {
  EXPECT_NE(refusal(linked("0.1", {"plan.search=placement"})).find("\"sync\" in plan.search"),
            std::string::npos);
  EXPECT_NE(refusal(linked("0.1", {"sync.policy=diloco"})).find("or no sync.policy"),
            std::string::npos);
  EXPECT_NE(refusal(parse_run("", "run.toml", {"plan.utilization=0.9"}), 1).find("or more ranks"),
            std::string::npos);
  EXPECT_THROW(validate_run(linked("0.1", {"plan.utilization=1"}), 4), UserError);
}

/// Families of what was left out, and how many ways each stands for.
std::map<std::string, int64_t> left_out(const SearchResult& result) {
  std::map<std::string, int64_t> families;
  for (const Rejection& one : result.rejected) families[one.family] += one.count;
  return families;
}

TEST(Policies, RoundsLongerThanTheRunAreLeftOut) {
  const SearchResult result = searched("0.002", {"train.steps=100", "sync.replica=none"});
  int64_t longest = 0;
  for (const Candidate& one : result.candidates)
    longest = std::max(longest, one.design.policy.period);
  EXPECT_EQ(longest, 100);
  EXPECT_EQ(left_out(result), (std::map<std::string, int64_t>{{"rounds of 500 steps", 2}}));
  EXPECT_NE(result.rejected.front().reason.find("train.steps = 100"), std::string::npos);
}

/// A level that parts the ranks of z, which the search tries by itself, ends nothing.
TEST(Policies, ReplicasThatCannotBeAreLeftOut) {
  const SearchResult result = search_policies(
      linked("0.002", {"mesh.axes.z=4", "placement.preset=hsdp", "train.micro_batch_size=6"}), 8,
      65);
  const int64_t local = std::ssize(policy_table()) - 1;
  EXPECT_EQ(std::ssize(result.candidates), 1 + local);  // every step; replicas of four
  EXPECT_EQ(left_out(result), (std::map<std::string, int64_t>{{"sync.replica = \"pair\"", local}}));
}

/// Before anything is searched, and under the key that asks for policies.
TEST(Policies, WhatAllowsNoLocalStepsIsRefused) {
  EXPECT_NE(refusal(linked("0.1", {"train.non_finite=skip"})).find("train.non_finite = \"skip\""),
            std::string::npos);
  strait::Run documents = linked("0.1", {"train.global_batch_tokens=4096"});
  documents.written.erase("train.global_batch_size");
  documents.train.global_batch_size = strait::Run().train.global_batch_size;
  EXPECT_NE(refusal(documents).find("train.global_batch_tokens"), std::string::npos);
}

TEST(Policies, RowsThatDoNotFitAreLeftOutByName) {
  const SearchResult all = searched("0.002", {"sync.replica=none"});
  std::set<int64_t> needs;
  for (const Candidate& one : all.candidates) needs.insert(one.memory.total());
  ASSERT_GT(needs.size(), 1U);
  const int64_t most = *needs.rbegin(), least = *std::next(needs.rbegin());
  const double share = static_cast<double>(least + most) / 2 /
                       static_cast<double>(all.candidates.front().design.cluster.memory_bytes);
  const SearchResult some =
      searched("0.002", {"sync.replica=none", fmt::format("plan.memory_share={:.9f}", share)});
  EXPECT_FALSE(some.candidates.empty());
  int64_t rows = 0;
  for (const auto& [family, count] : left_out(some))
    if (family.ends_with("sync.replica = \"none\"")) rows += count;
  EXPECT_EQ(std::ssize(some.candidates) + rows, std::ssize(all.candidates));
  const std::vector<std::string> lines = cli::policy_table(some, 3);
  EXPECT_NE(lines.back().find("sync.replica = \"none\": needs"), std::string::npos) << lines.back();
}

TEST(Policies, MemoryIsHeldAgainstTheShare) {
  const SearchResult result = searched("0.002", {"plan.memory_share=0.000001"});
  EXPECT_TRUE(result.candidates.empty());
  EXPECT_FALSE(result.rejected.empty());
}

}  // namespace
}  // namespace strait::plan
