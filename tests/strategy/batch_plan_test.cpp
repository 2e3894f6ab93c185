// Planning a batch of a large run takes little time (Z13), with all that a plan of a trained step
// has: routes, remapped tokens, capacities, its hash and what a rank attends.
#include "strait/strategy/compose/batch_plan.h"

#include <gtest/gtest.h>
#include <time.h>

#include <numeric>

#include "strait/base/errors.h"
#include "strait/config/parse.h"
#include "strait/data/lengths.h"
#include "strait/sequence/balanced.h"
#include "strait/sequence/rank_layout.h"
#include "tests/sanitized.h"

namespace strait::strategy {
namespace {

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Ranks of one sequence axis, eight on each node with four links.
BatchPlanner planner_of(int64_t ranks, int64_t row_tokens, const std::string& engine,
                        const std::string& head_ranks = "0", const std::string& remap = "auto") {
  const Run run = parse_run(
      "[model]\nfamily = \"llama\"\n"
      "shape = { layers = 2, heads = 32, kv_heads = 8, width = 3200, ffn_width = 8640, "
      "context = 65536, bias = false, tied_head = false }\n"
      "[train]\nprecision = \"bf16\"\n[sequence]\nengine = \"" +
          engine + "\"\nremap = \"" + remap + "\"\nhead_ranks = \"" + head_ranks +
          "\"\n[mesh]\naxes = { sequence = " + std::to_string(ranks) + " }\n",
      "test.toml");
  Cluster cluster;
  cluster.levels = {{"node", 8, 200e9, 5e-6, 1}, {"world", ranks / 8, 25e9, 1e-5, 4}};
  cluster.ranks = ranks;
  cluster.flops_per_second_bf16 = 0.6 * 312e12;
  return {run, cluster, Mesh(run.mesh, ranks), model_shape(run.model, 512), row_tokens};
}

/// In processor time of the fastest of several runs.
TEST(BatchPlan, TenThousandDocumentsOn1024RanksTakeFiftyMilliseconds) {
  const LengthDistribution corpus("corpus", 3, 1, 65536);
  std::vector<int64_t> lengths;
  for (uint64_t i = 0; i < 10000; ++i) lengths.push_back(corpus.length(i));
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  // Rounding alone gives a rank up to two tokens per document when all are spread.
  for (const char* head_ranks : {"0", "auto"})
    for (const std::string remap : {"auto", "qkv"}) {
      const BatchPlanner planner =
          planner_of(1024, 3 * tokens + 1024 * 20000, "zeppelin", head_ranks, remap);
      double best = 1e9;
      for (int run = 0; run < 7; ++run) {
        const double began = processor_seconds();
        const auto plan = planner.plan(lengths);
        const uint64_t hash = sequence::plan_hash(*plan);
        const sequence::RankLayout layout = sequence::rank_layout(*plan, 0);
        best = std::min(best, processor_seconds() - began);
        EXPECT_NE(hash, 0u);
        if (remap == "qkv") {
          EXPECT_EQ(plan->remapping, sequence::Remapping::kQkv);
        }
        EXPECT_GT(plan->proxies * plan->rotations * plan->head_ranks, 1);
        EXPECT_FALSE(layout.groups.empty());
      }
      RecordProperty(std::string("milliseconds_") + head_ranks + "_" + remap,
                     std::to_string(best * 1e3));
      EXPECT_LT(best, 0.05 * test::kSlowdown) << head_ranks << " " << remap;
    }
}

/// Whatever the engine would do with them, where the capacity holds them at all.
TEST(BatchPlan, ABatchThatDoesNotFitTheWantedSplitIsBalanced) {
  const std::vector<int64_t> long_ones = {900, 100, 100, 60}, short_ones(600, 1);
  for (const char* engine : {"packed", "even", "hybrid", "zeppelin"})
    for (const std::vector<int64_t>& lengths : {long_ones, short_ones}) {
      const BatchPlanner planner = planner_of(8, 8 * 170, engine);
      EXPECT_LE(sequence::most_tokens(*planner.plan(lengths)), 170) << engine;
    }
  EXPECT_THROW(planner_of(8, 8 * 170, "packed").plan(std::vector<int64_t>{1361}), UserError);
}

}  // namespace
}  // namespace strait::strategy
