// What plan enumerates, against every combination tried one by one.
#include "strait/plan/search.h"

#include <gtest/gtest.h>

#include <set>

#include "strait/config/parse.h"
#include "tests/pace.h"
#include "tests/sanitized.h"

namespace strait::plan {
namespace {

auto planned(const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"model.preset=nano-char", "cluster.preset=perlmutter"};
  all.insert(all.end(), sets.begin(), sets.end());
  return parse_run("", "run.toml", all);
}

TEST(Search, EveryDivisorOfTheShareIsTried) {
  const SearchResult result = search(
      planned({"train.global_batch_size=48", "plan.search=placement,micro_batch_size,recompute"}),
      4, 65);
  std::set<int64_t> sizes;
  for (const Candidate& candidate : result.candidates)
    sizes.insert(candidate.design.batch.micro_batch_size);
  EXPECT_EQ(sizes, (std::set<int64_t>{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(result.enumerated, static_cast<int64_t>(result.candidates.size()));
}

TEST(Search, WhatDoesNotFitIsCountedThoughOnlyItsFirstIsTried) {
  const std::vector<std::string> sets = {"train.global_batch_size=4096", "plan.memory_share=0.01",
                                         "plan.search=placement,micro_batch_size,recompute"};
  const SearchResult result = search(planned(sets), 4, 65);
  int64_t rejected = 0;
  for (const Rejection& rejection : result.rejected) rejected += rejection.count;
  EXPECT_GT(rejected, 0);
  EXPECT_EQ(result.enumerated, static_cast<int64_t>(result.candidates.size()) + rejected);
  // One by one: the same candidates fit.
  size_t fit = 0;
  for (int64_t size = 1; size <= 1024; size *= 2) {
    std::vector<std::string> one = sets;
    one.push_back("train.micro_batch_size=" + std::to_string(size));
    one.push_back("plan.search=placement,recompute");
    fit += search(planned(one), 4, 65).candidates.size();
  }
  EXPECT_EQ(result.candidates.size(), fit);
}

using GridChoice = std::pair<int64_t, int64_t>;

std::set<GridChoice> grids_of(const std::vector<std::string>& sets, int64_t ranks,
                              int64_t vocabulary = 64) {
  std::set<GridChoice> grids;
  for (const Candidate& candidate : search(planned(sets), ranks, vocabulary).candidates)
    grids.insert({candidate.design.mesh.axis("x").size, candidate.design.mesh.axis("y").size});
  return grids;
}

TEST(Search, GridsAreTriedWhereTheRunLeavesThemOpen) {
  std::vector<std::string> sets = {"train.global_batch_size=16", "model.shape.layers=2",
                                   "plan.search=mesh"};
  // Those of the shortest time by AxoNN's model, beside data alone.
  const std::set<GridChoice> grids = grids_of(sets, 8);
  EXPECT_EQ(grids.size(), 3U);
  EXPECT_TRUE(grids.contains({1, 1}));
  EXPECT_TRUE(grids.contains({2, 1}) || grids.contains({1, 2}));
  // A vocabulary that x does not divide leaves grids of y.
  for (const auto& [x, y] : grids_of(sets, 8, 65)) EXPECT_EQ(x, 1) << y;
  std::vector<std::string> fixed = sets;
  fixed.push_back("mesh.axes.y=2");
  EXPECT_EQ(grids_of(fixed, 8), (std::set<GridChoice>{{1, 2}}));
  sets.back() = "plan.search=placement";
  EXPECT_EQ(grids_of(sets, 8), (std::set<GridChoice>{{1, 1}}));
}

using Choice = std::pair<std::string, int64_t>;

std::set<Choice> orders_of(const std::vector<std::string>& sets, int64_t ranks) {
  std::set<Choice> orders;
  for (const Candidate& candidate : search(planned(sets), ranks, 65).candidates)
    orders.insert(
        {candidate.design.run.pipeline.order, candidate.design.run.pipeline.chunks_per_stage});
  return orders;
}

TEST(Search, OrdersOfStagesAreTried) {
  std::vector<std::string> sets = {"train.global_batch_size=16", "mesh.axes.stage=4",
                                   "model.shape.layers=8", "plan.search=pipeline,micro_batch_size"};
  const std::set<Choice> some = {
      {"gpipe", 1}, {"1f1b", 1}, {"interleaved", 2}, {"zero-bubble-h1", 1}};
  EXPECT_EQ(orders_of(sets, 4), some);
  std::set<Choice> all = some;
  all.insert({"zero-bubble-h2", 1});
  sets.push_back("train.clip_norm=0");
  EXPECT_EQ(orders_of(sets, 4), all);
  sets.push_back("pipeline.cuts=1,2,5");  // of four runs
  all.erase({"interleaved", 2});
  EXPECT_EQ(orders_of(sets, 4), all);
  const SearchResult result = search(planned(sets), 4, 65);
  EXPECT_EQ(result.candidates.front().design.run.pipeline.cuts, "1,2,5");
  sets.back() = "plan.search=micro_batch_size";
  sets.push_back("pipeline.order=gpipe");
  EXPECT_EQ(orders_of(sets, 4), (std::set<Choice>{{"gpipe", 1}}));
  EXPECT_EQ(orders_of({"train.global_batch_size=16"}, 4), (std::set<Choice>{{"1f1b", 1}}));
}

TEST(Search, InterleavedStagesAreTriedWithTheirMicroBatches) {
  const SearchResult result =
      search(planned({"train.global_batch_size=24", "mesh.axes.stage=4", "model.shape.layers=8",
                      "plan.search=pipeline,micro_batch_size"}),
             4, 65);
  std::set<int64_t> counts;
  for (const Candidate& candidate : result.candidates)
    if (candidate.design.run.pipeline.order == "interleaved")
      counts.insert(candidate.design.batch.accumulation);
  EXPECT_EQ(counts, (std::set<int64_t>{4, 8, 12, 24}));
  EXPECT_EQ(result.enumerated, static_cast<int64_t>(result.candidates.size()));
}

TEST(Search, ABatchOfABillionEndsSoon) {
  const double began = test::thread_processor_seconds();
  const SearchResult result = search(planned({"train.global_batch_size=1000000000"}), 4, 65);
  EXPECT_GT(result.enumerated, 100);
  EXPECT_LT(test::thread_processor_seconds() - began,
            30 * test::kSlowdown);  // at most 4,096 micro-steps each
}

}  // namespace
}  // namespace strait::plan
