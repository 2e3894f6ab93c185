// Numbers of stages and orders of pipelines that plan tries.
#include "strait/plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/plan/searched.h"

namespace strait::plan {
namespace {

using test::Choice;
using test::find_rejection;
using test::planned;
using test::rejected_count;

std::set<Choice> orders_of(const std::vector<std::string>& sets, int64_t ranks) {
  std::set<Choice> orders;
  for (const Candidate& candidate : search(planned(sets), ranks, 65).candidates)
    orders.insert(
        {candidate.design.run.pipeline.order, candidate.design.run.pipeline.chunks_per_stage});
  return orders;
}

TEST(SearchOfStages, OrdersOfStagesAreTried) {
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
}

TEST(SearchOfStages, ChunksOfTheRunFileAreTried) {
  std::vector<std::string> sets = {"train.global_batch_size=16", "mesh.axes.stage=2",
                                   "model.shape.layers=6", "plan.search=pipeline,micro_batch_size"};
  const std::set<Choice> usual = {
      {"gpipe", 1}, {"1f1b", 1}, {"interleaved", 2}, {"zero-bubble-h1", 1}};
  EXPECT_EQ(orders_of(sets, 2), usual);
  sets.push_back("pipeline.order=interleaved");
  sets.push_back("pipeline.chunks_per_stage=3");
  std::set<Choice> with_own = usual;
  with_own.insert({"interleaved", 3});
  EXPECT_EQ(orders_of(sets, 2), with_own);
  sets.push_back("pipeline.cuts=1,2,3,4,5");  // of six runs
  EXPECT_EQ(orders_of(sets, 2), (std::set<Choice>{{"interleaved", 3}}));
}

/// Numbers of stages and orders that were tried.
std::map<int64_t, std::set<std::string>> stages_of(const SearchResult& result) {
  std::map<int64_t, std::set<std::string>> stages;
  for (const Candidate& one : result.candidates)
    stages[one.design.mesh.axis("stage").size].insert(one.design.run.pipeline.order);
  return stages;
}

TEST(SearchOfStages, StagesAreTriedWhereTheRunLeavesThemOpen) {
  std::vector<std::string> sets = {"train.global_batch_size=64", "model.shape.layers=6",
                                   "plan.search=pipeline,micro_batch_size"};
  const SearchResult open = search(planned(sets), 16, 65);  // 4 nodes of 4
  const std::set<std::string> orders = {"gpipe", "1f1b", "interleaved", "zero-bubble-h1"};
  EXPECT_EQ(stages_of(open),
            (std::map<int64_t, std::set<std::string>>{
                {1, {"1f1b"}}, {2, orders}, {4, {"gpipe", "1f1b", "zero-bubble-h1"}}}));
  EXPECT_EQ(open.enumerated, std::ssize(open.candidates) + rejected_count(open));
  // The fastest order with micro-batches enough is searched with the others too.
  std::map<std::pair<int64_t, std::string>, std::set<int64_t>> counts;
  for (const Candidate& one : open.candidates)
    counts[{one.design.mesh.axis("stage").size, one.design.run.pipeline.order}].insert(
        one.design.batch.accumulation);
  int64_t searched = 0;
  for (const auto& [way, sizes] : counts) {
    if (way.first != 2) continue;
    if (sizes.size() > 1) {
      ++searched;
    } else {
      EXPECT_EQ(sizes, std::set<int64_t>{8});
    }
  }
  EXPECT_EQ(searched, 1);
  // 8 nodes: a stage for each of them beside the two fewest.
  sets[1] = "model.shape.layers=8";
  std::set<int64_t> numbers;
  for (const auto& [stages, names] : stages_of(search(planned(sets), 32, 65)))
    numbers.insert(stages);
  EXPECT_EQ(numbers, (std::set<int64_t>{1, 2, 4, 8}));
  // Two sequences are work for two ranks of data; that it is less than 8 and 4 is said once.
  std::vector<std::string> few = sets;
  few[0] = "train.global_batch_size=2";
  const SearchResult mended = search(planned(few), 16, 65);
  for (const auto& [stages, names] : stages_of(mended)) EXPECT_EQ(stages, 8);
  EXPECT_NE(find_rejection(mended, "stage 2"), nullptr);
  EXPECT_EQ(find_rejection(mended, "stage 4"), nullptr);
  // Not where an axis is written or the search does not name them.
  const std::map<int64_t, std::set<std::string>> alone = {{1, {"1f1b"}}};
  sets.back() = "plan.search=mesh,placement,micro_batch_size";
  EXPECT_EQ(stages_of(search(planned(sets), 4, 64)), alone);
  sets.back() = "plan.search=pipeline";
  sets.push_back("mesh.axes.x=2");
  EXPECT_EQ(stages_of(search(planned(sets), 4, 64)), alone);
}

/// Of a small batch too the order is chosen with as many micro-batches as it has.
TEST(SearchOfStages, OrdersOfSmallBatchesAreComparedWithMicroBatches) {
  for (const std::string rate : {"0.1", "1.0", "10.0"}) {
    const std::vector<std::string> sets = {
        "train.global_batch_size=4",
        "train.clip_norm=0",
        "model.shape.layers=8",
        "model.shape.context=1024",
        "plan.search=pipeline,micro_batch_size",
        "cluster.levels=[{ name = \"world\", size = 0, gb_per_second = " + rate + " }]"};
    const auto fastest = [](const SearchResult& result) {
      double seconds = 0;
      for (const Candidate& one : result.candidates)
        if (one.design.mesh.axis("stage").size == 2)
          if (seconds == 0 || one.simulated.seconds < seconds) seconds = one.simulated.seconds;
      return seconds;
    };
    std::vector<std::string> fixed = sets;
    fixed.push_back("mesh.axes.stage=2");  // every order is searched
    EXPECT_EQ(fastest(search(planned(sets), 2, 65)), fastest(search(planned(fixed), 2, 65)))
        << rate;
  }
}

/// Activations of a narrow model are less than its gradients.
TEST(SearchOfStages, StagesAreTakenWhereOnlyActivationsFitTheLink) {
  const SearchResult result =
      search(planned({"train.global_batch_size=8", "train.clip_norm=0", "model.shape.layers=8",
                      "cluster.levels=[{ name = \"world\", size = 0, gb_per_second = 0.0125 }]"}),
             2, 65);
  const Candidate& best = result.candidates.front();
  EXPECT_EQ(best.design.mesh.axis("stage").size, 2);
  double without = 0;
  for (const Candidate& one : result.candidates)
    if (one.design.mesh.axis("stage").size == 1 && one.design.mesh.axis("x").size == 1 &&
        one.design.mesh.axis("y").size == 1 && without == 0)
      without = one.simulated.seconds;
  EXPECT_GT(without, 1.5 * best.simulated.seconds);
}

/// With many micro-batches of much work, orders of two stages differ by less than 1 %.
TEST(SearchOfStages, OfEquallyFastOnesTheSmallestComesFirst) {
  const SearchResult result =
      search(planned({"train.global_batch_size=64", "train.micro_batch_size=1", "mesh.axes.stage=2",
                      "model.shape.layers=8", "model.shape.width=1024", "model.shape.heads=8",
                      "model.shape.kv_heads=8", "model.shape.ffn_width=4096",
                      "model.shape.context=1024", "plan.search=pipeline"}),
             2, 65);
  const auto seconds = [](const Candidate& candidate) { return candidate.simulated.seconds; };
  const auto bytes = [](const Candidate& candidate) { return candidate.memory.total(); };
  const double fastest = seconds(*std::ranges::min_element(result.candidates, {}, seconds));
  const auto slower = std::ranges::find_if(result.candidates, [&](const Candidate& candidate) {
    return seconds(candidate) > 1.01 * fastest;
  });
  EXPECT_GT(slower - result.candidates.begin(), 1);
  EXPECT_TRUE(std::ranges::is_sorted(result.candidates.begin(), slower, {}, bytes));
  EXPECT_TRUE(std::ranges::is_sorted(slower, result.candidates.end(), {}, seconds));
  EXPECT_GT(seconds(result.candidates.front()), fastest);
  EXPECT_EQ(result.candidates.front().design.run.pipeline.order, "1f1b");
}

TEST(SearchOfStages, InterleavedStagesAreTriedWithTheirMicroBatches) {
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

}  // namespace
}  // namespace strait::plan
