// Ranks along x that share every transformer block train as one rank does: every placement along
// data, tied and untied heads, dropout and clipping; their bytes, their checkpoints, evaluation and
// what they refuse.
#include <gtest/gtest.h>

#include <map>

#include "strait/base/errors.h"
#include "strait/cost/cost.h"
#include "strait/sim/simulate.h"
#include "tests/tensor/devices.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::Bytes;
using test::small_run;
using test::Trained;

struct Case {
  int64_t x, data, micro_batches;
  std::string placement;
  bool tied = true;
  std::string family = "gpt2";
  int64_t ranks() const { return x * data; }
  std::string text() const {
    return std::to_string(x) + " along x, " + std::to_string(data) + " along data, " + placement +
           ", " + family + (tied ? " tied" : " untied");
  }
};

class SharedBlocks : public test::MeshCases<Case> {
 public:
  static constexpr int64_t kGlobalBatch = 8;

 protected:
  std::vector<std::string> sets_of(const Case& c) const override {
    return {"mesh.axes.x=" + std::to_string(c.x),
            "placement.preset=" + c.placement,
            "train.global_batch_size=" + std::to_string(kGlobalBatch),
            "train.micro_batch_size=" + std::to_string(kGlobalBatch / c.data / c.micro_batches),
            "train.clip_norm=0.3",
            "runtime.threads_per_rank=1",
            "model.shape.heads=4",
            "model.shape.vocabulary=24",
            "model.shape.width=24",
            "model.shape.ffn_width=36",
            "model.shape.dropout=0.1",
            std::string("model.shape.tied_head=") + (c.tied ? "true" : "false"),
            "model.family=" + c.family,
            c.family == "gpt2" ? "model.shape.kv_heads=4" : "model.shape.kv_heads=2"};
  }
};

TEST_F(SharedBlocks, EqualOneRank) {
  std::vector<Case> cases;
  for (const char* placement : {"ddp", "zero1", "zero3"})
    for (const int64_t data : {1, 2, 4})
      for (const bool tied : {true, false}) cases.push_back({2, data, 2, placement, tied});
  cases.push_back({4, 2, 1, "zero2"});
  cases.push_back({4, 1, 4, "ddp"});
  for (const char* placement : {"zero1", "zero3"})
    cases.push_back({2, 2, 4, placement, placement[4] == '1', "llama"});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text());
    expect_equal(train(c), serial(c));
  }
}

TEST_F(SharedBlocks, EqualOneRankWithRecomputation) {
  for (const char* recompute : {"block", "every:2"}) {
    const Case c{2, 2, 2, "zero3"};
    expect_equal(train(c, {std::string("train.recompute=") + recompute}), serial(c));
  }
}

TEST_F(SharedBlocks, EqualOneRankUnderPlacementsThatFollowLevels) {
  for (const char* placement : {"hsdp", "mics"}) {
    const Case c{2, 4, 2, placement};
    expect_equal(train(c, {test::kPairs}), serial(c));
  }
}

/// Both round activations at the same places but for sums over x, so that their losses differ by
/// less than the roundings move a loss (2^-8 of it).
TEST_F(SharedBlocks, Bfloat16TrainsAlongsideOneRank) {
  for (const char* family : {"gpt2", "llama"})
    for (const char* placement : {"ddp", "zero3"}) {
      const Case c{2, 2, 2, placement, true, family};
      SCOPED_TRACE(c.text());
      const std::vector<std::string> narrow = {"train.precision=bf16", "train.steps=8"};
      const Trained want = train({1, 1, 1, "ddp", true, family}, narrow);
      const Trained got = train(c, narrow);
      for (size_t step = 0; step < want.losses.size(); ++step)
        EXPECT_NEAR(got.losses[step], want.losses[step], 0x1p-8 * want.losses[step]) << step;
    }
}

/// Codecs lose something: what is learnt differs by less than a fifth.
TEST_F(SharedBlocks, CodedPlacementsLearnWhatOneRankLearns) {
  const char* nodes =
      "cluster.levels=[{ name = \"node\", size = 4, gb_per_second = 4.0, latency_microseconds = "
      "1.0 "
      "}, { name = \"world\", size = 0, gb_per_second = 0.4, latency_microseconds = 5.0 }]";
  for (const char* placement : {"zero++", "zero-topo"}) {
    const Case c{2, 4, 1, placement};
    const Trained& want = serial(c);
    const double first = want.losses.front(), last = want.losses.back();
    EXPECT_NEAR(train(c, {nodes}).losses.back(), last, 0.2 * (first - last)) << placement;
  }
}

/// Elements of a unit that a rank of x holds: norms, positions and the biases behind sums are
/// everybody's.
int64_t local_elements(const Case& c, const UnitShape& unit, int64_t width) {
  if (!unit.name.starts_with("blocks.")) {
    const int64_t rows = unit.parameters.front().elements();
    return unit.elements - rows + rows / c.x;
  }
  const int64_t shared = (c.family == "gpt2" ? 6 : 4) * width;
  return shared + (unit.elements - shared) / c.x;
}

/// One step on pairs of ranks: what placements move along data, for each place along x; four sums
/// over x per block and micro-batch; what all agree on.
Bytes closed_form(const Case& c, const strategy::Design& design) {
  const bool narrow = design.dtype == Dtype::kBfloat16;
  const int64_t n = c.data, a = c.micro_batches;
  const ShapeOptions& options = design.shape.options;
  Bytes bytes;
  for (const UnitShape& unit : design.shape.units) {
    const int64_t m = local_elements(c, unit, options.width) * (narrow ? 2 : 8);
    const int64_t uses = unit.name.starts_with("blocks.") || c.tied ? 2 : 1;
    const auto along_data = [&](const char* operation, int64_t vectors) {
      for (int64_t place = 0; place < c.x; ++place)
        test::add_exchange(bytes, operation, vectors * m, {n, c.x});
    };
    if (c.placement == "ddp") along_data("all-reduce", 2);
    if (c.placement == "zero1") {
      along_data("reduce-scatter", 1);
      along_data("all-gather", 1);
    }
    if (c.placement == "zero3") {
      along_data("reduce-scatter", a);
      along_data("all-gather", a * uses);
    }
  }
  const int64_t numbers =
      options.layers * SharedBlocks::kGlobalBatch * options.context * options.width;
  // Two sums of the forward, in fp32 beside bf16, and one again; two of the backward.
  const int64_t forward = design.run.train.recompute == "none" ? 2 : 3;
  const int64_t sums = forward * (narrow ? 4 : 8) + 2 * (narrow ? 2 : 8);
  // Of the ends: what is embedded, the gradient of what the logits are made from, and three numbers
  // of every row from every rank.
  const int64_t rows = numbers / options.layers / options.width;
  const int64_t ends = rows * (2 * options.width * (narrow ? 2 : 8) + 3 * c.x * 8);
  test::add_exchange(bytes, "all-reduce", 2 * (numbers * sums + ends), {c.x, 1});
  test::add_exchange(bytes, "all-reduce", 2 * test::kAgreedBytes, {c.ranks(), 1}, true);
  std::erase_if(bytes, [](const auto& row) { return row.second == 0; });
  return bytes;
}

TEST_F(SharedBlocks, BytesAreClosedFormsInAllReaders) {
  std::vector<Case> cases;
  for (const char* placement : {"ddp", "zero1", "zero3"})
    for (const int64_t data : {1, 2, 4})
      for (const bool tied : {true, false}) cases.push_back({2, data, 2, placement, tied});
  cases.push_back({4, 2, 2, "zero3"});
  cases.push_back({2, 2, 4, "zero1", false, "llama"});
  std::vector<std::pair<Case, std::vector<std::string>>> runs;
  for (const Case& c : cases) runs.push_back({c, {}});
  runs.push_back({{2, 2, 2, "ddp"}, {"train.precision=bf16"}});
  runs.push_back({{2, 2, 2, "zero3"}, {"train.recompute=block"}});
  for (auto& [c, settings] : runs) {
    SCOPED_TRACE(c.text());
    settings.insert(settings.end(), {"train.steps=3", test::kPairs});
    strait::Run run = run_of(c, settings);
    run.output.run_dir = next_folder();
    const Job job = make_job(run, c.ranks());
    const train::Outcome outcome = test::outcome_of(job);
    const Bytes want = closed_form(c, job.design);
    test::expect_bytes(job, outcome.traffic, 3, want);
  }
}

TEST_F(SharedBlocks, CheckpointsGoFromAnyToAny) {
  const std::vector<Case> parts = {{2, 2, 2, "zero1"}, {1, 4, 1, "zero3"}, {4, 1, 4, "ddp"},
                                   {2, 4, 1, "zero3"}, {1, 1, 2, "ddp"},   {2, 2, 2, "zero3"}};
  const std::string run_dir = next_folder();
  Trained got;
  for (size_t part = 0; part < parts.size(); ++part) {
    const int64_t until = 20 * static_cast<int64_t>(part + 1) / static_cast<int64_t>(parts.size());
    const strait::Run run =
        run_of(parts[part], {"train.steps=" + std::to_string(until), "checkpoint.resume=auto",
                             "optimizer.decay_steps=20"});
    SCOPED_TRACE(parts[part].text());
    got = test::trained(run, parts[part].ranks(), run_dir);
  }
  expect_equal(got, serial({1, 1, 1, "ddp"}));
}

/// Only the first rank of x saves what all of them hold, and residuals of error feedback belong to
/// their sender: a rank that had rounded its copy otherwise would go on from other numbers.
TEST_F(SharedBlocks, ResumingChangesNoBit) {
  struct Sent {
    const char* placement;
    std::vector<std::string> keys;
  };
  const std::vector<Sent> all = {
      {"zero++",
       {test::kPairs, "placement.codecs.gradients=[\"int4/16+ef\"]",
        "placement.spans.secondary=none", "placement.codecs.weights=int8/16"}},
      {"zero++", {test::kPairs, "placement.spans.secondary=none"}},
      {"ddp", {"placement.codecs.gradients=int4/128+ef"}},
      {"zero1", {"placement.codecs.gradients=int8/2048"}},
      {"zero1", {"placement.codecs.gradients=int4/128+ef"}},
      {"zero1", {"placement.codecs.update=int8/2048"}},
      {"zero3", {"placement.codecs.weights=int8/2048"}},
      {"zero1",
       {"sync.policy=streaming-diloco", "sync.replica=1", "sync.rounds.period_steps=4",
        "sync.rounds.fragments=2"}}};
  for (const auto& [placement, keys] : all) {
    const Case c{2, 2, 2, placement};
    SCOPED_TRACE(c.text() + ", " + keys.back());
    const auto from = [&](const std::string& checkpoint, const std::string& run_dir) {
      std::vector<std::string> sets = {"train.steps=10", "checkpoint.every_steps=5",
                                       "checkpoint.keep=2", "checkpoint.resume=" + checkpoint};
      sets.insert(sets.end(), keys.begin(), keys.end());
      return test::trained(run_of(c, sets), c.ranks(), run_dir);
    };
    const std::string at_once = next_folder();
    const Trained want = from("auto", at_once);
    EXPECT_EQ(from(at_once + "/checkpoints/step-00000005", next_folder()).hash, want.hash);
  }
}

TEST_F(SharedBlocks, HashesDoNotDependOnTheMesh) {
  const auto hash_at_the_start = [&](const Case& at) {
    return train(at, {"train.steps=1", "optimizer.learning_rate=0", "optimizer.weight_decay=0",
                      "optimizer.warmup_steps=0"})
        .hash;
  };
  EXPECT_EQ(hash_at_the_start({2, 2, 2, "zero3"}), hash_at_the_start({1, 1, 1, "ddp"}));
}

TEST_F(SharedBlocks, MemoryIsWhatTheAllocatorSaw) {
  for (const char* placement : {"ddp", "zero3"})
    for (const char* recompute : {"none", "block"}) {
      const Case c{2, 2, 2, placement};
      SCOPED_TRACE(c.text());
      const train::Outcome outcome = test::train_small(
          run_of(c, {"train.steps=3", std::string("train.recompute=") + recompute}), c.ranks(),
          next_folder());
      test::expect_predicted_memory(outcome);
    }
}

TEST_F(SharedBlocks, RoundingThatIsDrawnIsRefused) {
  try {
    train({2, 2, 2, "zero1"}, {"train.steps=1", "placement.codecs.gradients=qsgd4/128+stochastic"});
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "placement.codecs.gradients");
    EXPECT_NE(std::string(error.what()).find("nearest: [\"qsgd4/128\"]"), std::string::npos)
        << error.what();
  }
}

TEST_F(SharedBlocks, ADeviceIsRefused) {
  const Case c{2, 1, 2, "ddp"};
  strait::Run run = run_of(c);
  run.output.run_dir = next_folder();
  Surroundings surroundings;
  surroundings.device = tensor::make_test_device("shadow");
  try {
    make_job(
        run, c.ranks(), [](const auto& action) { return action(); }, surroundings);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "runtime.device");
    EXPECT_NE(std::string(error.what()).find("mesh.axes.x = 1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace strait
