// How plan shares sequences and documents over ranks.
#include "strait/plan/search.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "strait/base/errors.h"
#include "strait/data/corpus.h"
#include "strait/plan/candidate.h"
#include "tests/plan/searched.h"

namespace strait::plan {
namespace {

using test::Choice;
using test::find_rejection;
using test::planned;
using test::rejected_count;

std::set<Choice> sharings_of(const SearchResult& result) {
  std::set<Choice> sharings;
  for (const Candidate& candidate : result.candidates)
    sharings.insert(
        {candidate.design.run.sequence.engine, candidate.design.mesh.axis("sequence").size});
  return sharings;
}

TEST(SearchOfSequences, SequencesAreSharedWhereTheRunLeavesThemOpen) {
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

TEST(SearchOfSequences, WhatDoesNotDivideIsLeftOutWithItsReason) {
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

TEST(SearchOfSequences, LongSequencesOverANarrowLinkAreShared) {
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

/// Two numbers of ranks tell which others could fit: keys on their way take memory, so that two
/// ranks save little of what one needs, and sixteen fit.
TEST(SearchOfSequences, AreSharedByAsManyRanksAsMemoryAsks) {
  const auto run =
      planned({"model.shape.context=8192", "train.global_batch_size=16", "plan.memory_share=0.0005",
               "plan.search=sequence,placement,recompute,micro_batch_size"});
  std::map<int64_t, std::set<std::string>> tried;
  std::mutex mutex;
  const SearchResult result = search(run, 16, 64, nullptr, [&](const strait::Run& one) {
    const std::scoped_lock lock(mutex);
    tried[one.mesh.axes.sequence].insert(one.placement.preset);
  });
  ASSERT_FALSE(result.candidates.empty());
  for (const Candidate& one : result.candidates)
    EXPECT_EQ(one.design.mesh.axis("sequence").size, 16);
  EXPECT_TRUE(tried[4].contains("ddp"));
  EXPECT_FALSE(tried[16].contains("ddp"));  // too little of it is shared
  EXPECT_EQ(result.enumerated, std::ssize(result.candidates) + rejected_count(result));
}

/// Where hosts are far apart, fewer keys travel between them if their ranks exchange heads first.
TEST(SearchOfSequences, HeadsAreExchangedInsideHostsAndKeysTravelBetweenThem) {
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

/// Plans likewise: long documents cross over a link of each rank.
TEST(SearchOfSequences, PlansExchangeHeadsInsideHosts) {
  std::vector<std::string> sets = {
      "model.family=llama",
      "model.shape.layers=2",
      "model.shape.width=64",
      "model.shape.heads=4",
      "model.shape.kv_heads=2",
      "model.shape.ffn_width=128",
      "model.shape.context=4096",
      "model.shape.dropout=0",
      "train.global_batch_tokens=4096",
      "mesh.axes.sequence=4",
      "plan.search=sequence",
      "cluster.levels=[{ name = \"host\", size = 2, gb_per_second = 2.0 }, { name = \"world\", "
      "size = 0, gb_per_second = 0.0125, links = 2 }]"};
  const SearchResult result = search(planned(sets), 4, 64);
  const Candidate* zeppelin = nullptr;
  for (const Candidate& one : result.candidates)
    if (one.design.run.sequence.engine == "zeppelin") zeppelin = &one;
  ASSERT_NE(zeppelin, nullptr);
  EXPECT_EQ(head_ranks(zeppelin->design), std::nullopt);
  EXPECT_EQ(candidate_json(*zeppelin, 1).at("sequence").at("head_ranks").as_string(), "auto");
  sets.push_back("sequence.engine=zeppelin");
  double seconds[2];
  for (const int64_t heads : {1, 2}) {
    std::vector<std::string> written = sets;
    written.push_back("sequence.head_ranks=" + std::to_string(heads));
    const SearchResult fixed = search(planned(written), 4, 64);
    ASSERT_FALSE(fixed.candidates.empty());
    const Candidate& one = fixed.candidates.front();
    EXPECT_EQ(head_ranks(one.design), heads);
    EXPECT_EQ(candidate_json(one, 1).at("sequence").at("head_ranks").as_integer(), heads);
    seconds[heads - 1] = one.simulated.seconds;
  }
  EXPECT_LT(seconds[1], seconds[0]);
  EXPECT_EQ(zeppelin->simulated.seconds, seconds[1]);
}

TEST(SearchOfSequences, BatchesOfDocumentsAreSharedByPlansToo) {
  const SearchResult result =
      search(planned({"train.global_batch_tokens=4096", "model.shape.layers=2",
                      "model.shape.dropout=0", "plan.search=sequence"}),
             2, 64);
  EXPECT_EQ(
      sharings_of(result),
      (std::set<Choice>{{"auto", 1}, {"ring", 2}, {"gathered", 2}, {"heads", 2}, {"zeppelin", 2}}));
}

/// Documents of few tokens are attended in less time, and whole ones on a rank in less than shared.
TEST(SearchOfSequences, LengthsOfDocumentsDecide) {
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

}  // namespace
}  // namespace strait::plan
