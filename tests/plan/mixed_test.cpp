// Meshes of several axes that plan tries.
#include "strait/plan/mixed.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "strait/base/errors.h"
#include "strait/plan/search.h"
#include "tests/plan/searched.h"

namespace strait::plan {
namespace {

using test::planned;
using Sets = std::vector<std::string>;

/// 22 billion parameters, of which four nodes of eight hold no more than their state.
Sets large(const Sets& more = {}) {
  Sets sets = {
      "model.preset=gpt2-124m",       "model.shape.layers=48",       "model.shape.width=6144",
      "model.shape.heads=48",         "model.shape.ffn_width=24576", "model.shape.context=2048",
      "model.shape.vocabulary=51200", "train.precision=bf16",        "train.recompute=block",
      "train.global_batch_size=64",   "placement.preset=zero1",      "cluster.preset=frontier"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

void allow_all(const strait::Run&) {}

/// Sizes of x, sequence and stage.
using Sizes = std::tuple<int64_t, int64_t, int64_t>;
Sizes sizes_of(const strait::Run& run) {
  return {run.mesh.axes.x, run.mesh.axes.sequence, run.mesh.axes.stage};
}

TEST(Mixtures, HaveSeveralAxesAboveOneWithXInsideOfNodes) {
  const auto run = planned(large());
  const auto runs = mixed_meshes(run, {32, 50257}, 1000, allow_all);
  std::set<Sizes> seen;
  for (const auto& one : runs) {
    const auto [x, sequence, stage] = sizes_of(one);
    EXPECT_LE(x, 8);
    EXPECT_GE((x > 1) + (sequence > 1) + (stage > 1), 2);
    EXPECT_EQ(32 % (x * sequence * stage), 0);
    EXPECT_EQ(one.written.contains("mesh.axes.x"), x > 1);
    EXPECT_EQ(one.written.contains("mesh.axes.sequence"), sequence > 1);
    EXPECT_EQ(one.written.contains("mesh.axes.stage"), stage > 1);
    EXPECT_EQ(one.written.contains("tensor.sequence_parallel"), one.tensor.sequence_parallel);
    EXPECT_TRUE(x > 1 || !one.tensor.sequence_parallel);
    seen.insert({x, sequence, stage});
  }
  for (const Sizes& sizes : {Sizes{8, 1, 4}, Sizes{4, 8, 1}, Sizes{1, 2, 16}, Sizes{2, 4, 4}})
    EXPECT_TRUE(seen.contains(sizes)) << std::get<0>(sizes);
  EXPECT_EQ(mixed_meshes(run, {32, 50257}, 2, allow_all).size(), 2U);
}

TEST(Mixtures, HaveOnlyAxesThatThePlanMayVary) {
  const auto run = planned(large({"plan.search=mesh,pipeline"}));
  for (const auto& one : mixed_meshes(run, {32, 50257}, 1000, allow_all))
    EXPECT_EQ(one.mesh.axes.sequence, 1);
  EXPECT_TRUE(
      mixed_meshes(planned(large({"plan.search=sequence"})), {32, 50257}, 9, allow_all).empty());
}

TEST(Mixtures, WhatCannotBeIsLeftOut) {
  const Setting setting{32, 50257};
  auto run = planned(large({"plan.search=mesh,pipeline"}));
  const auto few_stages = [](const strait::Run& one) {
    if (one.mesh.axes.stage > 2) throw UserError("too many");
  };
  for (const auto& one : mixed_meshes(run, setting, 100, few_stages))
    EXPECT_EQ(one.mesh.axes.stage, 2);
  run.model.shape.vocabulary = 50257;  // which no x divides
  EXPECT_TRUE(mixed_meshes(run, setting, 100, allow_all).empty());
}

/// As Llama 3's long contexts: x inside of nodes, its rows split too, sequences between them,
/// stages outside.
TEST(Mixtures, OfLongSequencesShareThemAndCutTheModel) {
  const auto run =
      planned({"model.preset=llama-3.1-405b", "train.global_batch_size=128", "train.precision=bf16",
               "train.recompute=block", "cluster.preset=dgx-h100"});
  const auto runs = mixed_meshes(run, {512, 128256}, 2, allow_all);
  ASSERT_EQ(runs.size(), 2U);
  for (const auto& one : runs) {
    const auto [x, sequence, stage] = sizes_of(one);
    EXPECT_GT(x, 1);
    EXPECT_GT(sequence, 1);
    EXPECT_GT(stage, 1);
    EXPECT_TRUE(one.tensor.sequence_parallel);
    EXPECT_NE(candidate_text(one).find(", rows split, sequence "), std::string::npos);
  }
}

TEST(Mixtures, AreWhatAPlanChoosesWhereNeitherAxisIsEnough) {
  const auto best = [](const char* search_for) {
    const auto run = planned(large({std::string("plan.search=") + search_for}));
    return search(run, 32, 50257);
  };
  const SearchResult both = best("mesh,pipeline,micro_batch_size");
  ASSERT_FALSE(both.candidates.empty());
  const MeshAxes& axes = both.candidates.front().design.run.mesh.axes;
  EXPECT_GT(axes.x, 1);
  EXPECT_GT(axes.stage, 1);
  for (const char* alone : {"mesh,micro_batch_size", "pipeline,micro_batch_size"}) {
    const SearchResult one = best(alone);
    if (one.candidates.empty()) continue;
    EXPECT_GT(one.candidates.front().simulated.seconds, both.candidates.front().simulated.seconds)
        << alone;
  }
}

/// The fastest order is composed again, with what is searched of it.
TEST(Mixtures, OfTheOrdersOfAMeshOneIsComposedTwice) {
  std::mutex mutex;
  std::map<Sizes, std::map<std::string, int64_t>> composed;
  const auto run = planned(large({"plan.search=mesh,pipeline"}));
  search(run, 32, 50257, nullptr, [&](const strait::Run& one) {
    if (one.mesh.axes.x == 1 || one.mesh.axes.stage == 1) return;
    const std::string batch = std::to_string(one.train.global_batch_size);  // of a shorter step
    const std::lock_guard lock(mutex);
    ++composed[sizes_of(one)][batch + ", " + candidate_text(one)];
  });
  bool any = false;
  for (const auto& [sizes, ways] : composed) {
    std::map<std::string, int64_t> again;  // by the sequences of a step, of which each way has two
    for (const auto& [way, count] : ways) again[way.substr(0, way.find(','))] += count - 1;
    for (const auto& [batch, count] : again) EXPECT_LE(count, 1) << batch << " sequences";
    any = any || ways.size() > 2;
  }
  EXPECT_TRUE(any);
}

}  // namespace
}  // namespace strait::plan
