// What plan enumerates, against every combination tried one by one.
#include "strait/plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <set>

#include "strait/base/errors.h"
#include "strait/config/parse.h"
#include "strait/data/corpus.h"
#include "strait/threads/cores.h"
#include "tests/sanitized.h"

namespace strait::plan {
namespace {

auto planned(const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"model.preset=nano-char", "cluster.preset=perlmutter"};
  all.insert(all.end(), sets.begin(), sets.end());
  return parse_run("", "run.toml", all);
}

int64_t rejected_count(const SearchResult& result) {
  int64_t count = 0;
  for (const Rejection& rejection : result.rejected) count += rejection.count;
  return count;
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
    std::vector<std::string> one = sets;
    one.push_back("train.micro_batch_size=" + std::to_string(size));
    one.push_back("plan.search=placement,recompute");
    fit += search(planned(one), 4, 65).candidates.size();
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

TEST(Search, TheRecomputationOfTheRunFileIsTried) {
  using Ways = std::map<int64_t, std::set<std::string>>;
  const auto ways_by_x = [](const std::string& own) {
    Ways ways;
    const SearchResult result =
        search(planned({"train.global_batch_size=4", "plan.search=recompute,mesh",
                        "model.shape.layers=6", "train.recompute=" + own}),
               2, 64);
    for (const Candidate& one : result.candidates)
      ways[one.design.mesh.axis("x").size].insert(one.design.run.train.recompute);
    return ways;
  };
  const std::set<std::string> usual = {"none", "every:2", "block"};
  EXPECT_EQ(ways_by_x("block"), (Ways{{1, usual}, {2, usual}}));
  std::set<std::string> all = usual;
  all.insert("every:3");
  EXPECT_EQ(ways_by_x("every:3"), (Ways{{1, all}, {2, all}}));
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

using Choice = std::pair<std::string, int64_t>;

std::set<Choice> sharings_of(const SearchResult& result) {
  std::set<Choice> sharings;
  for (const Candidate& candidate : result.candidates)
    sharings.insert(
        {candidate.design.run.sequence.engine, candidate.design.mesh.axis("sequence").size});
  return sharings;
}

const Rejection* find_rejection(const SearchResult& result, const std::string& family) {
  for (const Rejection& rejection : result.rejected)
    if (rejection.family == family) return &rejection;
  return nullptr;
}

TEST(Search, SequencesAreSharedWhereTheRunLeavesThemOpen) {
  std::vector<std::string> sets = {"train.global_batch_size=16", "model.shape.layers=2",
                                   "plan.search=sequence"};
  const SearchResult open = search(planned(sets), 4, 64);
  EXPECT_EQ(sharings_of(open), (std::set<Choice>{{"auto", 1},
                                                 {"ring", 2},
                                                 {"gathered", 2},
                                                 {"heads", 2},
                                                 {"ring", 4},
                                                 {"gathered", 4},
                                                 {"heads", 4},
                                                 {"heads_ring", 4}}));
  for (const Candidate& candidate : open.candidates) {
    if (candidate.design.run.sequence.engine != "heads_ring") continue;
    EXPECT_EQ(candidate.design.shape.head_ranks, 2);
  }
  EXPECT_EQ(open.enumerated, std::ssize(open.candidates) + rejected_count(open));
  sets.back() = "plan.search=mesh,placement";
  EXPECT_EQ(sharings_of(search(planned(sets), 4, 64)), (std::set<Choice>{{"auto", 1}}));
  sets.back() = "plan.search=sequence";
  sets.push_back("mesh.axes.sequence=2");
  EXPECT_EQ(sharings_of(search(planned(sets), 4, 64)),
            (std::set<Choice>{{"ring", 2}, {"gathered", 2}, {"heads", 2}}));
  sets.push_back("sequence.engine=gathered");
  EXPECT_EQ(sharings_of(search(planned(sets), 4, 64)), (std::set<Choice>{{"gathered", 2}}));
  sets[3] = "mesh.axes.x=2";
  sets.pop_back();
  EXPECT_EQ(sharings_of(search(planned(sets), 4, 64)), (std::set<Choice>{{"auto", 1}}));
}

TEST(Search, WhatDoesNotDivideIsLeftOutWithItsReason) {
  const SearchResult heads =
      search(planned({"train.global_batch_size=16", "plan.search=sequence", "model.shape.width=96",
                      "model.shape.heads=6", "model.shape.kv_heads=6"}),
             4, 64);
  const Rejection* of_heads = find_rejection(heads, "sequence 4, heads");
  ASSERT_NE(of_heads, nullptr);
  EXPECT_NE(of_heads->reason.find("mesh.axes.sequence = 4 ranks the same number of 6 key heads"),
            std::string::npos)
      << of_heads->reason;
  EXPECT_NE(of_heads->reason.find("mesh.axes.sequence = 3"), std::string::npos);
  EXPECT_EQ(of_heads->count, 1);
  EXPECT_FALSE(of_heads->is_of_memory());
  EXPECT_EQ(find_rejection(heads, "sequence 2, heads"), nullptr);
  const SearchResult context = search(
      planned({"train.global_batch_size=16", "model.shape.context=100", "plan.search=sequence"}), 4,
      64);
  const Rejection* of_all = find_rejection(context, "sequence 4");
  ASSERT_NE(of_all, nullptr);
  EXPECT_NE(of_all->reason.find("model.shape.context = 100 cannot be cut"), std::string::npos);
  EXPECT_EQ(of_all->count, 4);
  EXPECT_EQ(sharings_of(context).count({"ring", 2}), 1U);
}

TEST(Search, LongSequencesOverANarrowLinkAreShared) {
  std::vector<std::string> sets = {
      "model.family=llama",
      "model.shape.layers=2",
      "model.shape.width=64",
      "model.shape.heads=4",
      "model.shape.kv_heads=1",
      "model.shape.ffn_width=128",
      "model.shape.context=4096",
      "train.global_batch_size=1",
      "cluster.levels=[{ name = \"world\", size = 0, gb_per_second = 0.0125 }]"};
  // A batch of one sequence has work for one rank: without shared sequences it is refused.
  sets.push_back("plan.search=placement");
  const auto run_of = [&] { return parse_run("", "run.toml", sets); };
  EXPECT_THROW(search(run_of(), 4, 64), UserError);
  sets.back() = "plan.search=mesh,sequence,placement,micro_batch_size,recompute";
  const SearchResult result = search(run_of(), 4, 64);
  const Candidate& best = result.candidates.front();
  EXPECT_EQ(best.design.mesh.axis("sequence").size, 4);
  EXPECT_EQ(best.design.run.sequence.engine, "ring");
  bool grids = false;
  for (const Candidate& candidate : result.candidates)
    grids |= candidate.design.mesh.axis("x").size * candidate.design.mesh.axis("y").size == 4;
  EXPECT_TRUE(grids) << "something else was there to choose";
  const Rejection* own = find_rejection(result, "mesh of the run file");
  ASSERT_NE(own, nullptr);
  EXPECT_NE(own->reason.find("train.global_batch_size = 1"), std::string::npos) << own->reason;
  EXPECT_EQ(result.enumerated, std::ssize(result.candidates) + rejected_count(result));
}

/// Where hosts are far apart, fewer keys travel between them if their ranks exchange heads first.
TEST(Search, HeadsAreExchangedInsideHostsAndKeysTravelBetweenThem) {
  const SearchResult result =
      search(planned({"model.family=llama", "model.shape.layers=2", "model.shape.width=64",
                      "model.shape.heads=4", "model.shape.kv_heads=2", "model.shape.ffn_width=128",
                      "model.shape.context=4096", "train.global_batch_size=1",
                      "mesh.axes.sequence=4", "plan.search=sequence",
                      "cluster.levels=[{ name = \"host\", size = 2, gb_per_second = 2.0 }, "
                      "{ name = \"world\", size = 0, gb_per_second = 0.0125 }]"}),
             4, 64);
  EXPECT_EQ(sharings_of(result),
            (std::set<Choice>{{"ring", 4}, {"gathered", 4}, {"heads_ring", 4}}));
  const Candidate& best = result.candidates.front();
  EXPECT_EQ(best.design.run.sequence.engine, "heads_ring");
  EXPECT_EQ(best.design.shape.head_ranks, 2);
  const Rejection* heads = find_rejection(result, "sequence 4, heads");
  ASSERT_NE(heads, nullptr);
  EXPECT_NE(heads->reason.find("the same number of 2 key heads"), std::string::npos);
}

TEST(Search, BatchesOfDocumentsAreSharedByPlansToo) {
  const SearchResult result =
      search(planned({"train.global_batch_tokens=4096", "model.shape.layers=2",
                      "model.shape.dropout=0", "plan.search=sequence"}),
             2, 64);
  EXPECT_EQ(
      sharings_of(result),
      (std::set<Choice>{{"auto", 1}, {"ring", 2}, {"gathered", 2}, {"heads", 2}, {"zeppelin", 2}}));
}

/// Documents of few tokens are attended in less time, and whole ones on a rank in less than shared.
TEST(Search, LengthsOfDocumentsDecide) {
  const auto run_of = [](const std::string& lengths) {
    return planned({"train.global_batch_tokens=16384", "model.shape.context=8192",
                    "model.shape.layers=2", "model.shape.dropout=0", "plan.search=sequence",
                    "mesh.axes.sequence=4",
                    "data.path=synthetic:lengths/" + lengths + "/tokens=200000",
                    "cluster.levels=[{ name = \"world\", size = 0, gb_per_second = 0.0125 }]"});
  };
  std::map<std::string, double> seconds[2];
  for (const bool known : {false, true}) {
    const auto run = run_of("lognormal-2k/scale=0.1");
    const Corpus corpus = make_corpus(run.data);
    for (const Candidate& one : search(run, 4, 256, known ? &corpus : nullptr).candidates)
      seconds[known ? 1 : 0][one.design.run.sequence.engine] = one.simulated.compute_seconds;
  }
  ASSERT_EQ(seconds[1].size(), 5U);  // ring, gathered, heads, heads_ring, zeppelin
  for (const auto& [engine, time] : seconds[1]) EXPECT_LT(time, seconds[0][engine]) << engine;
  const auto run = run_of("lognormal-2k/scale=0.1");
  const Corpus corpus = make_corpus(run.data);
  EXPECT_EQ(search(run, 4, 256, &corpus).candidates.front().design.run.sequence.engine, "zeppelin");
}

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
}

TEST(Search, ChunksOfTheRunFileAreTried) {
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

TEST(Search, StagesAreTriedWhereTheRunLeavesThemOpen) {
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
TEST(Search, OrdersOfSmallBatchesAreComparedWithMicroBatches) {
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

/// Activations of a narrow model are less than its gradients.
TEST(Search, StagesAreTakenWhereOnlyActivationsFitTheLink) {
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
TEST(Search, OfEquallyFastOnesTheSmallestComesFirst) {
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
