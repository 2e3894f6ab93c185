// How many neighbours exchange heads is chosen batch by batch (sequence.head_ranks = "auto"): the
// simulator has it no slower than any fixed number.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "strait/base/file.h"
#include "strait/config/parse.h"
#include "strait/data/lengths.h"
#include "strait/sim/simulate.h"
#include "tests/train/mesh/plan_programs.h"

namespace strait {
namespace {

/// Two nodes of four ranks, with as many links between them as `links` says, and the lengths of
/// their documents.
struct Case {
  std::string lengths;
  double scale = 1;
  double gb_per_second = 1;  // of a link between nodes
  int64_t links = 1, key_heads = 8;
  std::string text() const {
    return fmt::format("{}/{}, {} links of {} GB/s, {} key heads", lengths, scale, links,
                       gb_per_second, key_heads);
  }
};

constexpr int64_t kRanks = 8, kTokens = 16384, kContext = 8192, kBatches = 4;

/// Of two-core machines and their links.
std::string cluster_file(const Case& c) {
  const std::string path = testing::TempDir() + "exchanged_heads_cluster.toml";
  write_file_atomically(
      path, fmt::format("version = 1\nlevels = [\n"
                        "  {{ name = \"node\", size = 4, gb_per_second = 4.0, "
                        "latency_microseconds = 5.0 }},\n"
                        "  {{ name = \"across\", size = 0, gb_per_second = {}, "
                        "latency_microseconds = 20.0, links = {} }},\n]\n"
                        "[rates]\nfp32_flops_per_second = 2e11\nfp32_attention_flops_per_second "
                        "= 8e10\nmemory_bytes_per_second = 2e10\n",
                        c.gb_per_second, c.links));
  return path;
}

strategy::Design design_of(const Case& c, const std::string& head_ranks) {
  const Run run =
      parse_run("", "test.toml",
                {"model.family=llama", "model.shape.layers=2", "model.shape.heads=8",
                 fmt::format("model.shape.kv_heads={}", c.key_heads), "model.shape.width=512",
                 "model.shape.ffn_width=1408", "model.shape.dropout=0", "model.shape.bias=false",
                 fmt::format("model.shape.context={}", kContext),
                 fmt::format("train.global_batch_tokens={}", kTokens), "placement.preset=ddp",
                 fmt::format("mesh.axes.sequence={}", kRanks), "sequence.engine=zeppelin",
                 "sequence.head_ranks=" + head_ranks, "cluster.file=" + cluster_file(c)});
  return strategy::make_design(run, kRanks, 256, 0, nullptr);
}

/// Simulated seconds of batches, and which numbers of neighbours their plans had.
struct Outcome {
  std::vector<double> seconds;
  std::set<int64_t> head_ranks;
};

Outcome simulated(const Case& c, const std::string& head_ranks) {
  const strategy::Design design = design_of(c, head_ranks);
  const LengthDistribution lengths(c.lengths, 5, c.scale, kContext);
  Outcome outcome;
  uint64_t first = 0;
  for (int64_t batch = 0; batch < kBatches; ++batch) {
    const std::vector<int64_t> documents = lengths.batch(first, kTokens);
    first += documents.size();
    const auto plan = design.planner->plan(documents);
    const program::ProgramSet set = test::programs_of(design, plan);
    for (const program::StepKind& kind : set.kinds)
      if (kind.name == strategy::kSteady)
        outcome.seconds.push_back(sim::simulate(kind.classes, design.cluster).seconds);
    outcome.head_ranks.insert(plan->head_ranks);
  }
  return outcome;
}

TEST(ExchangedHeads, AsManyAsAreCheapestAreNoSlowerThanAnyFixedNumber) {
  std::set<int64_t> taken;
  for (const auto& [lengths, scale] : {std::pair("corpus", 1.0), std::pair("corpus", 0.25),
                                       std::pair("lognormal-8k", 0.5), std::pair("pareto", 1.0)})
    for (const auto& [gb_per_second, links] :
         {std::pair(0.01, 1), std::pair(0.03, 4), std::pair(0.3, 1), std::pair(3.0, 4)})
      for (const int64_t key_heads : {8, 2}) {
        const Case c{lengths, scale, gb_per_second, links, key_heads};
        const Outcome chosen = simulated(c, "auto");
        taken.insert(chosen.head_ranks.begin(), chosen.head_ranks.end());
        std::string times;
        double all = 0, best = 1e9;
        for (const double seconds : chosen.seconds) all += seconds;
        for (const int64_t fixed : {0, 2, 4}) {
          if (fixed > key_heads) continue;
          double sum = 0;
          for (const double seconds : simulated(c, std::to_string(fixed)).seconds) sum += seconds;
          times += fmt::format(" {}: {:.4f}", fixed, sum);
          best = std::min(best, sum);
        }
        EXPECT_LE(all, 1.02 * best) << c.text() << ": auto " << all << "," << times;
      }
  EXPECT_GE(taken.size(), 3U);
}

}  // namespace
}  // namespace strait
