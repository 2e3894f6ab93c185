// Pipelines train as one rank does: every placement along data, tied and untied heads, dropout and
// clipping; their bytes, their checkpoints and their bad input.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "strait/base/errors.h"
#include "strait/cost/cost.h"
#include "strait/sim/simulate.h"
#include "tests/tensor/devices.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::small_run;
using test::Trained;

struct Case {
  int64_t stages, data, micro_batches;
  std::string placement;
  bool tied = true;
  std::string family = "gpt2";
  int64_t ranks() const { return stages * data; }
  std::string text() const {
    return std::to_string(stages) + " stages x " + std::to_string(data) + " " + placement + ", " +
           std::to_string(micro_batches) + " micro-batches, " + family +
           (tied ? " tied" : " untied");
  }
};

class Pipelines : public test::MeshCases<Case> {
 public:
  static constexpr int64_t kGlobalBatch = 8;

 protected:
  std::vector<std::string> sets_of(const Case& c) const override {
    return {"mesh.axes.stage=" + std::to_string(c.stages),
            "placement.preset=" + c.placement,
            "train.global_batch_size=" + std::to_string(kGlobalBatch),
            "train.micro_batch_size=" + std::to_string(kGlobalBatch / c.data / c.micro_batches),
            "train.clip_norm=0.3",
            "model.shape.layers=4",
            "model.shape.dropout=0.1",
            std::string("model.shape.tied_head=") + (c.tied ? "true" : "false"),
            "model.family=" + c.family,
            c.family == "gpt2" ? "model.shape.kv_heads=2" : "model.shape.kv_heads=1"};
  }
};

TEST_F(Pipelines, EqualOneRank) {
  std::vector<Case> cases;
  for (const char* placement : {"ddp", "zero1", "zero3"})
    for (const int64_t data : {1, 2, 4})
      for (const bool tied : {true, false}) cases.push_back({2, data, 2, placement, tied});
  cases.push_back({2, 2, 1, "zero2"});
  cases.push_back({2, 2, 4, "zero2"});
  cases.push_back({3, 2, 4, "zero1"});
  cases.push_back({4, 2, 2, "zero3"});
  cases.push_back({4, 1, 8, "ddp"});
  for (const char* placement : {"zero1", "zero3"})
    cases.push_back({2, 2, 4, placement, false, "llama"});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text());
    expect_equal(train(c), serial(c));
  }
}

TEST_F(Pipelines, EqualOneRankWithRecomputation) {
  const Case c{2, 2, 2, "zero3"};
  expect_equal(train(c, {"train.recompute=block"}), serial(c));
}

/// Bytes by operation, summed over all ranks: one level.
using Bytes = std::map<std::string, int64_t>;

Bytes bytes_of(const Ledger& ledger, int64_t steps) {
  Bytes bytes;
  for (const Traffic& row : ledger.rows()) {
    EXPECT_EQ(row.payload_bytes % steps, 0) << row.operation;
    if (row.payload_bytes > 0) bytes[row.operation] += row.payload_bytes / steps;
  }
  return bytes;
}

/// One step: what placements move along data, per stage; activations and their gradients between
/// stages; the sum of what both ends hold; what all agree on (5 numbers).
Bytes closed_form(const Case& c, const strategy::Design& design) {
  constexpr int64_t kBytes = 8;  // fp64
  const int64_t n = c.data, last = static_cast<int64_t>(design.shape.blocks.size()) - 1;
  Bytes bytes;
  std::map<int64_t, std::set<int64_t>> holders;  // of a unit: stages
  std::map<std::pair<int64_t, int64_t>, int64_t> uses;
  for (int64_t block = 0; block <= last; ++block) {
    const int64_t unit = design.shape.blocks[static_cast<size_t>(block)].unit;
    const int64_t stage = block == 0      ? 0
                          : block == last ? c.stages - 1
                                          : (block - 1) * c.stages / (last - 1);
    holders[unit].insert(stage);
    uses[{unit, stage}] += block == 0 || block == last ? 1 : 2;  // gathers per micro-step
  }
  for (const auto& [unit, stages] : holders) {
    const int64_t m = design.shape.units[static_cast<size_t>(unit)].elements * kBytes;
    for (const int64_t stage : stages) {
      if (c.placement == "ddp") bytes["all-reduce"] += 2 * (n - 1) * m;
      if (c.placement == "zero1") {
        bytes["reduce-scatter"] += (n - 1) * m;
        bytes["all-gather"] += (n - 1) * m;
      }
      if (c.placement == "zero3") {
        bytes["reduce-scatter"] += c.micro_batches * (n - 1) * m;
        bytes["all-gather"] += c.micro_batches * uses[{unit, stage}] * (n - 1) * m;
      }
    }
    // Ends hold the whole gradient, or their shard of it: every pair sums what it holds.
    const int64_t pairs = c.placement == "zero3" ? 1 : n;
    if (stages.size() == 2) bytes["all-reduce"] += 2 * pairs * m;
  }
  const int64_t sequences = Pipelines::kGlobalBatch;
  const ShapeOptions& options = design.shape.options;
  bytes["send"] = 2 * (c.stages - 1) * sequences * options.context * options.width * kBytes;
  bytes["all-reduce"] += 2 * (c.ranks() - 1) * 5 * kBytes;
  std::erase_if(bytes, [](const auto& row) { return row.second == 0; });
  return bytes;
}

TEST_F(Pipelines, BytesAreClosedFormsInAllReaders) {
  for (const char* placement : {"ddp", "zero1", "zero3"})
    for (const int64_t data : {1, 2})
      for (const int64_t stages : {2, 4})
        for (const bool tied : {true, false}) {
          const Case c{stages, data, 4, placement, tied};
          SCOPED_TRACE(c.text());
          strait::Run run = run_of(c, {"train.steps=3"});
          run.output.run_dir = next_folder();
          const Job job = make_job(run, c.ranks());
          const train::Outcome outcome = test::outcome_of(job);
          const Bytes want = closed_form(c, job.design);
          EXPECT_EQ(bytes_of(outcome.traffic, 3), want);
          EXPECT_EQ(bytes_of(job.simulated.traffic, 1), want);
          EXPECT_EQ(bytes_of(job.cost.traffic, 1), want);
        }
}

TEST_F(Pipelines, CheckpointsGoFromAnyToAny) {
  const std::vector<Case> parts = {{2, 2, 2, "zero1"}, {1, 4, 1, "zero3"}, {4, 1, 4, "ddp"},
                                   {2, 1, 8, "zero3"}, {1, 1, 2, "ddp"},   {2, 4, 1, "zero3"}};
  const std::string run_dir = next_folder();
  Trained got;
  for (size_t part = 0; part < parts.size(); ++part) {
    const int64_t until = 20 * static_cast<int64_t>(part + 1) / static_cast<int64_t>(parts.size());
    strait::Run run = run_of(parts[part], {"train.steps=" + std::to_string(until),
                                           "checkpoint.resume=auto", "optimizer.decay_steps=20"});
    SCOPED_TRACE(parts[part].text());
    got = test::trained(run, parts[part].ranks(), run_dir);
  }
  expect_equal(got, serial({1, 1, 1, "ddp"}));
}

/// First and last stage encode different gradients of a tied embedding, and lose something each.
TEST_F(Pipelines, ResidualsOfATiedEmbeddingAreKept) {
  const Case c{2, 2, 2, "zero1"};
  const auto until = [&](int64_t steps, const std::string& run_dir) {
    return test::trained(
        run_of(c, {"train.steps=" + std::to_string(steps), "placement.codecs.gradients=int4/128+ef",
                   "checkpoint.resume=auto", "optimizer.decay_steps=10"}),
        c.ranks(), run_dir);
  };
  const std::string at_once = next_folder(), in_parts = next_folder();
  const Trained want = until(10, at_once);
  until(5, in_parts);
  EXPECT_EQ(until(10, in_parts).hash, want.hash);
}

TEST_F(Pipelines, HashesDoNotDependOnTheMesh) {
  const Case c{2, 2, 2, "zero1"};
  const auto hash_at_the_start = [&](const Case& at) {
    return train(at, {"train.steps=1", "optimizer.learning_rate=0", "optimizer.weight_decay=0",
                      "optimizer.warmup_steps=0"})
        .hash;
  };
  EXPECT_EQ(hash_at_the_start(c), hash_at_the_start({1, 1, 1, "ddp"}));
}

TEST_F(Pipelines, MemoryIsWhatTheAllocatorSaw) {
  for (const char* placement : {"ddp", "zero3"})
    for (const int64_t micro_batches : {2, 4}) {
      const Case c{2, 2, micro_batches, placement};
      SCOPED_TRACE(c.text());
      const train::Outcome outcome =
          test::train_small(run_of(c, {"train.steps=3"}), c.ranks(), next_folder());
      test::expect_predicted_memory(outcome);
    }
}

TEST_F(Pipelines, TrainOnADevice) {
  const Case c{2, 2, 2, "zero3"};
  strait::Run run = run_of(c);
  run.output.run_dir = next_folder();
  Job job = make_job(run, c.ranks());
  job.device = tensor::make_test_device("shadow");
  const train::Outcome outcome = test::outcome_of(job);
  expect_equal({outcome.losses, "", test::master_weights(run.output.run_dir, run),
                outcome.validation.back().loss},
               serial(c));
}

}  // namespace
}  // namespace strait
