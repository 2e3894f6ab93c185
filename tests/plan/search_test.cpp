// What plan enumerates, against every combination tried one by one.
#include "strait/plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <set>

#include "strait/base/errors.h"
#include "strait/threads/cores.h"
#include "tests/plan/searched.h"
#include "tests/sanitized.h"

namespace strait::plan {
namespace {

using test::planned;
using test::rejected_count;

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

TEST(Search, OfPlacementsOverOneRankOneIsTried) {
  const std::vector<std::string> sets = {"train.global_batch_size=8", "mesh.axes.stage=2",
                                         "model.shape.layers=2", "plan.search=placement"};
  const SearchResult alone = search(planned(sets), 2, 65);
  ASSERT_EQ(alone.candidates.size(), 1U);
  EXPECT_EQ(alone.candidates[0].design.placement.preset, "ddp");
  EXPECT_GT(search(planned(sets), 4, 65).candidates.size(), 1U);
}

TEST(Search, WhatDoesNotFitIsCountedThoughOnlyItsFirstIsTried) {
  const std::vector<std::string> sets = {"train.global_batch_size=4096", "plan.memory_share=0.01",
                                         "plan.search=placement,micro_batch_size,recompute"};
  const SearchResult result = search(planned(sets), 4, 65);
  int64_t rejected = 0;
  for (const Rejection& rejection : result.rejected) {
    rejected += rejection.count;
    EXPECT_TRUE(rejection.smallest.starts_with(rejection.family + ", recompute "))
        << rejection.smallest;
    EXPECT_NE(rejection.smallest.find(", micro-batches of "), std::string::npos);
  }
  EXPECT_GT(rejected, 0);
  EXPECT_EQ(result.enumerated, static_cast<int64_t>(result.candidates.size()) + rejected);
  // One by one: the same candidates fit.
  size_t fit = 0;
  for (int64_t size = 1; size <= 1024; size *= 2) {
    for (const char* recompute : {"none", "every:2", "block"}) {
      std::vector<std::string> one = sets;
      one.push_back("train.micro_batch_size=" + std::to_string(size));
      one.push_back(std::string("train.recompute=") + recompute);
      one.push_back("plan.search=placement");
      fit += search(planned(one), 4, 65).candidates.size();
    }
  }
  EXPECT_EQ(result.candidates.size(), fit);
}

/// What the run file itself allows is planned, though its keys forbid other placements.
TEST(Search, PlacementsThatOtherKeysForbidAreLeftOut) {
  for (const std::vector<std::string>& own : std::vector<std::vector<std::string>>{
           {"mesh.axes.z=2", "placement.preset=hsdp"},
           {"placement.preset=ddp", "compression.codec=qsgd4/512"},
           {"placement.preset=zero3", "tensor.cached_gathers=1"},
           {"placement.preset=zero3", "placement.prefetch_units=3"},
           {"placement.preset=zero3", "tensor.overlap=oar,ors"},
           {"placement.preset=zero3", "placement.codecs.weights=int8/2048"},
           {"placement.preset=zero-topo", "placement.codecs.update=fp8e4m3"},
           {"placement.preset=zero++", "placement.codecs.secondary=int8/2048"},
           {"placement.spans.weights=2"},
           {"placement.spans.weights=node", "placement.spans.gradients=node",
            "placement.spans.optimizer=node"},
           {"placement.preset=mics", "placement.reduce_every=step"}}) {
    std::vector<std::string> sets = {"train.global_batch_size=16", "model.shape.layers=2",
                                     "plan.search=placement"};
    sets.insert(sets.end(), own.begin(), own.end());
    const SearchResult result = search(planned(sets), 8, 65);
    const strait::Run run = planned(sets);
    const auto its_own = [&](const Candidate& candidate) {
      return candidate.design.placement.preset == run.placement.preset;
    };
    EXPECT_TRUE(std::ranges::any_of(result.candidates, its_own)) << testing::PrintToString(own);
    EXPECT_FALSE(result.rejected.empty()) << testing::PrintToString(own);
    EXPECT_EQ(result.enumerated,
              static_cast<int64_t>(result.candidates.size()) + rejected_count(result));
  }
  EXPECT_THROW(search(planned({"train.global_batch_size=16", "placement.spans.weights=3"}), 8, 65),
               UserError);
}

/// A micro-batch that is refused takes no other with it.
TEST(Search, MicroBatchesThatCannotBeAreLeftOut) {
  for (const std::vector<std::string>& own : std::vector<std::vector<std::string>>{
           {"model.shape.context=65", "tensor.sequence_parallel=true"},
           {"model.shape.context=16", "tensor.tiles=on"}}) {
    std::vector<std::string> sets = {"train.global_batch_size=8", "model.shape.layers=2",
                                     "mesh.axes.x=2", "plan.search=placement,micro_batch_size"};
    sets.insert(sets.end(), own.begin(), own.end());
    const SearchResult result = search(planned(sets), 2, 64);
    std::set<int64_t> sizes;
    for (const Candidate& one : result.candidates) sizes.insert(one.design.batch.micro_batch_size);
    EXPECT_EQ(sizes, (std::set<int64_t>{2, 4, 8})) << testing::PrintToString(own);
    EXPECT_FALSE(result.rejected.empty());
    EXPECT_EQ(result.enumerated, std::ssize(result.candidates) + rejected_count(result));
  }
}

/// Recomputation takes time and saves memory: where all fits without, no other way is tried.
TEST(Search, TheRecomputationOfTheRunFileIsTriedWhereMemoryIsShort) {
  using Ways = std::map<int64_t, std::set<std::string>>;
  const auto ways_by_x = [](const std::string& own, const char* memory_share) {
    Ways ways;
    const SearchResult result = search(
        planned({"train.global_batch_size=4096", "plan.search=recompute,mesh,micro_batch_size",
                 "model.shape.layers=6", "train.recompute=" + own,
                 std::string("plan.memory_share=") + memory_share}),
        2, 64);
    for (const Candidate& one : result.candidates)
      ways[one.design.mesh.axis("x").size].insert(one.design.run.train.recompute);
    return ways;
  };
  const std::set<std::string> usual = {"none", "every:2", "block"};
  EXPECT_EQ(ways_by_x("block", "0.01"), (Ways{{1, usual}, {2, usual}}));
  std::set<std::string> all = usual;
  all.insert("every:3");
  EXPECT_EQ(ways_by_x("every:3", "0.01"), (Ways{{1, all}, {2, all}}));
  EXPECT_EQ(ways_by_x("block", "1"), (Ways{{1, {"none"}}, {2, {"none"}}}));
}

using GridChoice = std::pair<int64_t, int64_t>;

std::set<GridChoice> grids_of(const std::vector<std::string>& sets, int64_t ranks,
                              int64_t vocabulary = 64) {
  std::set<GridChoice> grids;
  for (const Candidate& candidate : search(planned(sets), ranks, vocabulary).candidates)
    grids.insert({candidate.design.mesh.axis("x").size, candidate.design.mesh.axis("y").size});
  return grids;
}

TEST(Search, OnlyWhatFitsIsPricedAndSimulated) {
  const strait::Run run = planned({"train.global_batch_size=16"});
  const Candidate fits = evaluate(run, {4, 64});
  EXPECT_TRUE(fits.fits());
  EXPECT_GT(fits.simulated.seconds, 0);
  EXPECT_GT(fits.cost.flops, 0);
  strait::Run narrow = run;
  narrow.plan.memory_share = 1e-6;
  const Candidate large = evaluate(narrow, {4, 64});
  EXPECT_FALSE(large.fits());
  EXPECT_EQ(large.memory.total(), fits.memory.total());
  EXPECT_EQ(large.simulated.seconds, 0);
  EXPECT_EQ(large.cost.flops, 0);
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

/// Rows of documents need not be as many on every rank.
TEST(Search, GridsOfDocumentsNeedNoEvenRows) {
  EXPECT_TRUE(grids_of({"train.global_batch_tokens=8192", "cluster.preset=localhost",
                        "model.shape.context=1024", "model.shape.layers=2", "model.shape.dropout=0",
                        "plan.search=mesh"},
                       6)
                  .contains({2, 1}));
}

/// AxoNN's model does not know the shapes of convolutions, so all grids are composed.
TEST(Search, AUnetIsTriedOnGridsAndInStages) {
  const SearchResult result =
      search(parse_run("", "run.toml",
                       {"model.preset=unet-nano", "data.path=synthetic:images/size=16/colors=1",
                        "train.global_batch_size=16", "cluster.preset=perlmutter"}),
             4, 0);
  std::set<GridChoice> grids;
  std::set<int64_t> stages;
  for (const Candidate& one : result.candidates) {
    grids.insert({one.design.mesh.axis("x").size, one.design.mesh.axis("y").size});
    stages.insert(one.design.mesh.axis("stage").size);
    EXPECT_EQ(one.design.mesh.axis("sequence").size, 1);
  }
  EXPECT_EQ(grids, (std::set<GridChoice>{{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}}));
  EXPECT_EQ(stages, (std::set<int64_t>{1, 2, 4}));
  EXPECT_EQ(result.enumerated, std::ssize(result.candidates) + rejected_count(result));
}

TEST(Search, AUnetIsTriedOnGridsThatAreNoPowersOfTwo) {
  const SearchResult result =
      search(parse_run("", "run.toml",
                       {"model.preset=unet-nano", "model.unet.channels=[12, 24]",
                        "data.path=synthetic:images/size=16/colors=1", "train.global_batch_size=12",
                        "cluster.preset=perlmutter"}),
             3, 0);
  std::set<GridChoice> grids;
  for (const Candidate& one : result.candidates)
    grids.insert({one.design.mesh.axis("x").size, one.design.mesh.axis("y").size});
  EXPECT_TRUE(grids.contains({1, 3}));
  EXPECT_TRUE(grids.contains({3, 1}));
  EXPECT_EQ(result.enumerated, std::ssize(result.candidates) + rejected_count(result));
}

/// Candidates are tried on all cores, and stand in the order in which one would try them.
TEST(Search, WhatIsFoundDoesNotDependOnTheCores) {
  const auto summary = [] {
    const SearchResult result =
        search(planned({"train.global_batch_size=16", "plan.memory_share=0.0003"}), 8, 64);
    EXPECT_GT(result.candidates.size(), 10U);
    EXPECT_GT(rejected_count(result), 10);
    std::string text = std::to_string(result.enumerated);
    for (const Candidate& one : result.candidates) text += candidate_json(one, 0).dump(0) + "\n";
    for (const Rejection& one : result.rejected)
      text += one.family + std::to_string(one.count) + " " + std::to_string(one.needs_bytes) + "\n";
    return text;
  };
  const std::string on_all = summary();
  const CoreBinding binding({usable_cores().front()});
  EXPECT_EQ(summary(), on_all);
}

TEST(Search, ABatchOfABillionEndsSoon) {
  const std::clock_t began = std::clock();  // of all threads
  const SearchResult result = search(planned({"train.global_batch_size=1000000000"}), 4, 65);
  EXPECT_GT(result.enumerated, 100);
  EXPECT_LT(static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC,
            60 * test::kSlowdown);  // at most 4,096 micro-steps each
}

}  // namespace
}  // namespace strait::plan
