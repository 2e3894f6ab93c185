// Ranks of x that split the rows between products (tensor.sequence_parallel; Korthikanti et al.
// 2022) train as one rank does: every family, both axes, every placement, stages, sequences,
// recomputation and dropout; their bytes, memory, checkpoints, and what is refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>

#include "strait/base/errors.h"
#include "strait/config/parse.h"
#include "strait/config/validate.h"
#include "strait/draft/segment_ops.h"
#include "strait/sim/simulate.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/mesh/three_blocks.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using program::Op;
using program::OpKind;
using test::Bytes;
using test::small_run;
using test::Trained;
using Sets = std::vector<std::string>;

struct Case {
  int64_t x = 2, y = 1, z = 1, data = 1, stages = 1, sequence = 1;
  std::string placement = "ddp";
  std::string family = "gpt2";
  bool tied = true;
  Sets more = {};
  int64_t ranks() const { return x * y * z * data * stages * sequence; }
  std::string text() const {
    return fmt::format("{} x {} x {}, data {}, stages {}, sequence {}, {}, {}{}, {}", x, y, z, data,
                       stages, sequence, placement, family, tied ? " tied" : " untied",
                       fmt::join(more, " "));
  }
};

const std::string kOn = "tensor.sequence_parallel=true";

class SplitRows : public test::MeshRuns {
 public:
  static constexpr int64_t kGlobalBatch = 8, kMicroBatches = 2;

 protected:
  strait::Run run_of(const Case& c, const Sets& more = {}) {
    const int64_t micro = kGlobalBatch / (c.z * c.data) / kMicroBatches;
    Sets sets = {fmt::format("mesh.axes.x={}", c.x),
                 fmt::format("mesh.axes.y={}", c.y),
                 fmt::format("mesh.axes.z={}", c.z),
                 fmt::format("mesh.axes.stage={}", c.stages),
                 fmt::format("mesh.axes.sequence={}", c.sequence),
                 "placement.preset=" + c.placement,
                 fmt::format("train.global_batch_size={}", kGlobalBatch),
                 fmt::format("train.micro_batch_size={}", micro),
                 "train.clip_norm=0.3",
                 "runtime.threads_per_rank=1",
                 "model.shape.layers=2",
                 "model.shape.heads=8",
                 "model.shape.kv_heads=" + std::string(c.family == "gpt2" ? "8" : "4"),
                 "model.shape.width=16",
                 "model.shape.ffn_width=24",
                 "model.shape.context=12",
                 "model.shape.vocabulary=24",
                 "model.shape.dropout=0.1",
                 fmt::format("model.shape.tied_head={}", c.tied),
                 "model.family=" + c.family};
    for (const Sets* others : {&c.more, &more})
      sets.insert(sets.end(), others->begin(), others->end());
    return small_run(folder_.path(), sets);
  }
  Trained train(const Case& c, const Sets& more = {kOn}) {
    return test::trained(run_of(c, more), c.ranks(), next_folder());
  }
  const Trained& serial(const std::string& family, bool tied, const Sets& more = {}) {
    const auto [found, fresh] = serial_.try_emplace({family, tied, more});
    if (fresh) found->second = train({.x = 1, .family = family, .tied = tied, .more = more}, {});
    return found->second;
  }
  std::string refusal(const Case& c, const Sets& sets = {kOn}) {
    return refusal_of([&] { make_job(run_of(c, sets), c.ranks()); });
  }

 private:
  std::map<std::tuple<std::string, bool, Sets>, Trained> serial_;
};

TEST_F(SplitRows, TwoRanksEqualOne) { expect_equal(train({}), serial("gpt2", true)); }

TEST_F(SplitRows, EveryMeshEqualsOneRank) {
  const std::vector<Case> cases = {
      {.x = 4},
      {.x = 2, .tied = false},
      {.x = 2, .y = 2},
      {.x = 4, .y = 2, .tied = false},
      {.x = 2, .data = 2, .placement = "zero1"},
      {.x = 2, .data = 2, .placement = "zero2", .tied = false},
      {.x = 2, .data = 4, .placement = "zero3"},
      {.x = 2, .z = 2, .data = 2, .placement = "hsdp"},
      {.x = 2, .y = 2, .z = 2, .placement = "zero3"},
      {.x = 2, .stages = 2},
      {.x = 2, .data = 2, .stages = 2, .placement = "zero1", .tied = false},
      {.x = 2, .sequence = 2, .more = {"sequence.engine=gathered"}},
      {.x = 2, .sequence = 2, .more = {"sequence.engine=ring"}},
      {.x = 2, .sequence = 2, .more = {"sequence.engine=heads"}},
      {.x = 2, .family = "llama"},
      {.x = 4, .family = "llama", .tied = false},
      {.x = 2, .y = 2, .data = 2, .placement = "zero3", .family = "llama"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text());
    expect_equal(train(c), serial(c.family, c.tied));
  }
}

TEST_F(SplitRows, RecomputationEqualsOneRank) {
  for (const char* recompute : {"block", "every:2"})
    for (const Case& c : {Case{.x = 2}, Case{.x = 2, .y = 2, .family = "llama"},
                          Case{.x = 2, .data = 2, .placement = "zero3"}, Case{.stages = 2}}) {
      SCOPED_TRACE(c.text());
      expect_equal(train(c, {kOn, std::string("train.recompute=") + recompute}),
                   serial(c.family, c.tied));
    }
}

TEST_F(SplitRows, UpdatesInTheBackwardEqualOneRank) {
  const Sets no_norm = {"train.clip_norm=0", "train.non_finite=stop"};
  const Case c{.x = 2, .data = 2, .placement = "zero1", .more = no_norm};
  expect_equal(train(c, {kOn, "optimizer.in_backward=true"}), serial("gpt2", true, no_norm));
}

/// Norms behind branches, and of the queries and keys of each head.
TEST_F(SplitRows, EveryFamilyEqualsOneRank) {
  for (const char* family : {"qwen3", "mistral", "gemma2", "gemma3"}) {
    const bool gemma = family[0] == 'g';
    Sets sets = {"model.shape.bias=false"};
    if (gemma)
      sets.insert(sets.end(), {"model.shape.dropout=0", "model.shape.window=5",
                               "model.shape.window_pattern=2"});
    for (const Sets& more : {Sets{}, Sets{"train.recompute=block"}})
      for (const int64_t y : {1, 2}) {
        const Case c{.x = 2, .y = y, .family = family, .tied = gemma, .more = more};
        SCOPED_TRACE(c.text());
        Sets on = sets;
        on.push_back(kOn);
        expect_equal(train(c, on), serial(family, gemma, sets));
      }
  }
}

/// The gradients of weights wait for their place in the order.
TEST_F(SplitRows, SplitBackwardPassesEqualOneRank) {
  const Sets zero_bubble = {"pipeline.order=zero-bubble-h1", "train.clip_norm=0",
                            "train.non_finite=stop"};
  const Sets alone = {"train.clip_norm=0", "train.non_finite=stop"};
  for (const char* recompute : {"none", "block", "every:2"})
    for (const char* family : {"gpt2", "llama"}) {
      const Case c{.x = 2, .stages = 2, .family = family, .more = zero_bubble};
      SCOPED_TRACE(c.text() + " " + recompute);
      expect_equal(train(c, {kOn, std::string("train.recompute=") + recompute}),
                   serial(family, true, alone));
    }
}

TEST_F(SplitRows, EveryOrderOfAPipelineEqualsOneRank) {
  const Sets four = {"model.shape.layers=4"};
  for (const Sets& order :
       {Sets{"pipeline.order=gpipe"},
        Sets{"pipeline.order=interleaved", "pipeline.chunks_per_stage=2"},
        Sets{"pipeline.order=zero-bubble-h2", "pipeline.post_validation=true"}}) {
    const Case c{.x = 2, .stages = 2, .tied = false, .more = four};
    SCOPED_TRACE(order.front());
    Sets on = order;
    on.push_back(kOn);
    expect_equal(train(c, on), serial("gpt2", false, four));
  }
}

TEST_F(SplitRows, OverlapsChangeNoBit) {
  for (const Case& c : {Case{.x = 2}, Case{.x = 2, .y = 2, .family = "llama"}}) {
    SCOPED_TRACE(c.text());
    const Trained want = train(c, {kOn, "train.steps=4"});
    const Trained got = train(c, {kOn, "train.steps=4", "tensor.overlap=[]"});
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.hash, want.hash);
  }
}

/// Behind the scatter of up's input gradient stands the product of down, behind the gather that
/// follows that of up; behind the scatter of qkv's, which no gather of the block follows, both.
TEST_F(SplitRows, TransfersHaveProductsToHideBehind) {
  using Found = std::vector<std::string>;
  const auto behind_transfers = [&](const Sets& sets) {
    Found found;
    const std::vector<Op> ops = test::steady_ops(make_job(run_of({.x = 2}, sets), 2));
    for (size_t at = 1; at < ops.size(); ++at) {
      const bool moves =
          ops[at].kind == OpKind::kAllGather || ops[at].kind == OpKind::kReduceScatter;
      for (size_t next = at + 1; moves && ops[next].kernel == &draft::kBackwardWeight; ++next)
        found.push_back(
            fmt::format("{} {}", program::op_name(ops[at]),
                        segment_name(static_cast<Segment>(draft::range_of(ops[next]).begin))));
    }
    found.resize(std::min<size_t>(found.size(), 4));
    return found;
  };
  EXPECT_EQ(behind_transfers({kOn}), (Found{"reduce_scatter down", "all_gather up",
                                            "reduce_scatter output", "reduce_scatter qkv"}));
  EXPECT_EQ(behind_transfers({kOn, "tensor.overlap=[]"}), Found{});
}

/// On a link on which transfers take about half the backward.
TEST_F(SplitRows, OverlapsHide) {
  const auto seconds = [&](const Sets& more) {
    Sets sets = {"model.shape.width=256",
                 "model.shape.ffn_width=1024",
                 "model.shape.context=256",
                 "model.shape.layers=8",
                 "train.precision=fp32",
                 "model.shape.dropout=0",
                 "tensor.tiles=off",
                 "cluster.levels=[{ name = \"world\", size = 0, gb_per_second = 1.0, "
                 "latency_microseconds = 1.0 }]"};
    sets.insert(sets.end(), more.begin(), more.end());
    return make_job(run_of({.x = 2}, sets), 2).simulated.seconds;
  };
  const double hidden = seconds({kOn}), bare = seconds({kOn, "tensor.overlap=[]"});
  std::printf("seconds of a step: %.4f with, %.4f without overlap; whole rows %.4f and %.4f\n",
              hidden, bare, seconds({}), seconds({"tensor.overlap=[]"}));
  EXPECT_LT(hidden, 0.98 * bare);
}

TEST_F(SplitRows, EvaluationsEqualOneRanks) {
  const Sets evaluates = {"evaluation.every_steps=5", "evaluation.batches=2",
                          "data.validation_share=0.2"};
  const Case c{.x = 2, .y = 2, .more = evaluates};
  const Trained got = train(c), want = serial("gpt2", true, evaluates);
  EXPECT_FALSE(std::isnan(want.validation));
  EXPECT_NEAR(got.validation, want.validation, 1e-9 * want.validation);
}

/// Sums of the forward are fp32, rounded where they are: losses differ by less than the roundings
/// move one (2^-8 of it).
TEST_F(SplitRows, Bfloat16TrainsAlongsideOneRank) {
  const Sets narrow = {"train.precision=bf16", "train.steps=8"};
  for (const char* family : {"gpt2", "llama"}) {
    const Trained want = train({.x = 1, .family = family}, narrow);
    for (const Case& c :
         {Case{.x = 2, .family = family},
          Case{.x = 2, .y = 2, .data = 2, .placement = "zero3", .family = family}}) {
      SCOPED_TRACE(c.text());
      Sets on = narrow;
      on.push_back(kOn);
      const Trained got = train(c, on);
      for (size_t step = 0; step < want.losses.size(); ++step)
        EXPECT_NEAR(got.losses[step], want.losses[step], 0x1p-8 * want.losses[step]) << step;
    }
  }
}

/// Saved with rows split, resumed without, in other meshes, and back.
TEST_F(SplitRows, CheckpointsDoNotKnowOfIt) {
  const std::vector<std::pair<Case, Sets>> parts = {
      {{.x = 2, .data = 2, .placement = "zero1"}, {kOn}},
      {{.x = 1, .data = 2}, {}},
      {{.x = 4}, {kOn}},
      {{.x = 2}, {}},
      {{.x = 2, .y = 2}, {kOn}}};
  const std::string run_dir = next_folder();
  Trained got;
  for (size_t part = 0; part < parts.size(); ++part) {
    const auto& [c, on] = parts[part];
    Sets sets = {fmt::format("train.steps={}", 4 * (part + 1)), "checkpoint.resume=auto",
                 "optimizer.decay_steps=20"};
    sets.insert(sets.end(), on.begin(), on.end());
    SCOPED_TRACE(c.text());
    got = test::trained(run_of(c, sets), c.ranks(), run_dir);
  }
  expect_equal(got, serial("gpt2", true));
}

/// One step on pairs of ranks, without data ranks. Per block and micro-batch of R rows: over x four
/// reduce-scatters and six all-gathers of R C / y numbers, two of them of what the backward makes
/// again, or five and six where it computes a block again; sums of the gradients of norms; over y
/// what a grid sums, but moments of R / x rows.
Bytes closed_form(const Case& c, const strategy::Design& design) {
  const ShapeOptions& options = design.shape.options;
  const bool rms = design.shape.style.rms_norm, gated = design.shape.style.gated;
  const bool again = design.run.train.recompute == "block";
  const int64_t narrow = design.dtype == Dtype::kBfloat16 ? 2 : 8, wide = narrow == 2 ? 4 : 8;
  Bytes bytes;
  const auto over_x = [&](const char* operation, int64_t vector_bytes) {
    for (int64_t place = 0; place < c.y; ++place)
      test::add_exchange(bytes, operation, vector_bytes, {c.x, 1});
  };
  const auto over_y = [&](int64_t vector_bytes) {
    for (int64_t place = 0; place < c.x; ++place)
      test::add_exchange(bytes, "all-reduce", 2 * vector_bytes, {c.y, c.x});
  };
  const int64_t rows = SplitRows::kGlobalBatch * options.context, layers = options.layers;
  const int64_t stream = rows * options.width / c.y;
  over_x("reduce-scatter", layers * stream * ((again ? 3 : 2) * wide + 2 * narrow));
  over_x("all-gather", layers * stream * 6 * narrow);
  over_x("reduce-scatter", 2 * stream * narrow);  // what is embedded; gradient of what is normed
  over_x("all-gather", 2 * stream * narrow);      // what is normed; gradient of what is embedded
  const int64_t norms = (2 * layers + 1) * 2 * options.width / c.y * wide;
  over_x("all-reduce", 2 * rows * 3 * c.x * 8);
  for (int64_t place = 0; place < c.y; ++place)  // small enough to go direct
    test::add_exchange(bytes, "all-reduce", 2 * SplitRows::kMicroBatches * norms, {c.x, 1}, true);
  const int64_t head = options.head_elements();
  const int64_t qkv = (options.heads + 2 * options.kv_heads) * head;
  const int64_t up = (gated ? 2 : 1) * options.ffn_width;
  const int64_t moments = (rms ? 1 : 2) * (again ? 6 : 4);
  over_y(
      rows * layers *
      (((again ? 2 : 1) * (qkv + up) * wide + (options.heads * head + options.ffn_width) * narrow) /
           c.x +
       moments * 8 / c.x));
  over_y(rows * (design.shape.vocabulary / c.x * wide + 2 * (rms ? 1 : 2) * 8 / c.x));
  test::add_exchange(bytes, "all-reduce", 2 * test::kAgreedBytes, {c.ranks(), 1}, true);
  std::erase_if(bytes, [](const auto& row) { return row.second == 0; });
  return bytes;
}

TEST_F(SplitRows, BytesAreClosedFormsInAllReaders) {
  const Sets narrow = {"train.precision=bf16"}, again = {"train.recompute=block"};
  for (const Case& c : {Case{.x = 2}, Case{.x = 2, .family = "llama"}, Case{.x = 2, .y = 2},
                        Case{.x = 4}, Case{.x = 2, .more = narrow}, Case{.x = 2, .more = again},
                        Case{.x = 2, .y = 2, .family = "llama", .more = again}}) {
    SCOPED_TRACE(c.text());
    strait::Run run = run_of(c, {kOn, "train.steps=3", test::kPairs});
    run.output.run_dir = next_folder();
    const Job job = make_job(run, c.ranks());
    const train::Outcome outcome = test::outcome_of(job);
    test::expect_bytes(job, outcome.traffic, 3, closed_form(c, job.design));
  }
}

/// A stage has a rank's rows, and so sends 1 / x of what it sends without.
TEST_F(SplitRows, StagesSendWhatARankHas) {
  const auto sent = [&](const Sets& more) {
    const Case c{.x = 2, .stages = 2, .more = {"train.steps=3"}};
    strait::Run run = run_of(c, more);
    run.output.run_dir = next_folder();
    const Job job = make_job(run, c.ranks());
    const train::Outcome outcome = test::outcome_of(job);
    Bytes bytes;
    for (const auto& [row, count] : test::bytes_of(outcome.traffic, 3))
      if (row.first == "send") bytes[row] = count;
    EXPECT_FALSE(bytes.empty());
    for (const auto& [row, count] : bytes) {
      EXPECT_EQ(test::bytes_of(job.simulated.traffic, 1)[row], count);
      EXPECT_EQ(test::bytes_of(job.cost.traffic, 1)[row], count);
    }
    return bytes;
  };
  Bytes half = sent({});
  for (auto& [row, count] : half) count /= 2;
  EXPECT_EQ(sent({kOn}), half);
}

TEST_F(SplitRows, MemoryIsWhatTheAllocatorSaw) {
  for (const Case& c : {Case{.x = 2}, Case{.x = 4, .more = {"train.recompute=block"}},
                        Case{.x = 2, .y = 2, .data = 2, .placement = "zero3"},
                        Case{.x = 2, .family = "llama", .more = {"train.precision=bf16"}}}) {
    SCOPED_TRACE(c.text());
    const train::Outcome outcome =
        test::train_small(run_of(c, {kOn, "train.steps=3"}), c.ranks(), next_folder());
    test::expect_predicted_memory(outcome);
  }
}

/// What a deep model keeps between products: input and middle of every block, of a rank's rows.
TEST_F(SplitRows, KeptActivationsFall) {
  const Sets deep = {"model.shape.layers=24"};
  const auto peak = [&](const Sets& more) {
    Sets sets = deep;
    sets.insert(sets.end(), more.begin(), more.end());
    const train::Outcome outcome = test::train_small(run_of({.x = 4}, sets), 4, next_folder());
    return outcome.pool_peak_bytes.front();
  };
  const int64_t micro = kGlobalBatch / kMicroBatches, rows = micro * 12, bytes = 8;
  const int64_t kept = 24 * 2 * rows * 16 * bytes;  // by all four ranks alike
  const int64_t saved = peak({"train.steps=1"}) - peak({kOn, "train.steps=1"});
  EXPECT_GT(saved, kept * 3 / 4 * 8 / 10);
  EXPECT_LT(saved, kept * 11 / 10);
}

TEST_F(SplitRows, WhatItCannotDoIsRefused) {
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(refusal({.x = 1, .y = 2}),
              AllOf(HasSubstr("tensor.sequence_parallel: tensor.sequence_parallel = true"),
                    HasSubstr("mesh.axes.x = 1"), HasSubstr("false, or mesh.axes.x = 2")));
  EXPECT_THAT(refusal({.x = 2}, {kOn, "model.shape.context=7", "train.micro_batch_size=1"}),
              AllOf(HasSubstr("tensor.sequence_parallel: "), HasSubstr("the 7 rows"),
                    HasSubstr("false, or train.micro_batch_size = 2")));
  EXPECT_THAT(refusal({.x = 8}, {kOn, "model.shape.context=7", "train.global_batch_size=4",
                                 "train.micro_batch_size=2"}),
              HasSubstr("the nearest valid value is false"));
  const strait::Run unet =
      parse_run("", "run.toml",
                {"model.preset=unet-nano", "data.path=synthetic:images/size=16/colors=1",
                 "mesh.axes.x=2", kOn});
  try {
    validate_run(unet, 2);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("tensor.sequence_parallel = true"),
                                    HasSubstr("\"unet\""), HasSubstr("valid value is false")));
  }
}

}  // namespace
}  // namespace strait
