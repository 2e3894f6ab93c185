// Gathers and scatters of rows beside the products that take or make them (tensor.tiles where
// tensor.sequence_parallel splits rows; specs: overlap 7b, invariants X1 to X4, X6 and X7): chunks
// of shards change neither bits nor bytes, stand in the order of FLUX, and hide what they should.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <set>

#include "strait/cli/plan_text.h"
#include "strait/cost/cost.h"
#include "strait/draft/segment_ops.h"
#include "strait/draft/shard_kernels.h"
#include "strait/sim/simulate.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/instances.h"
#include "tests/train/mesh/hiding.h"
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

constexpr int64_t kLayers = 3, kWidth = 16, kBatch = 4;

/// `context`: rows of a micro-batch of one sequence.
struct Case {
  int64_t x = 2, y = 1, data = 1, stages = 1, sequence = 1, context = 10;
  std::string placement = "ddp";
  Sets more = {};
  std::string precision = "fp64";
  int64_t ranks() const { return x * y * data * stages * sequence; }
  std::string text() const {
    return fmt::format("{} x {}, data {}, stages {}, sequence {}, context {}, {}, {} {}", x, y,
                       data, stages, sequence, context, placement, precision, fmt::join(more, " "));
  }
};

const std::string kSplit = "tensor.sequence_parallel=true", kOff = "tensor.tiles=off";
constexpr const char* kOneLevel =
    "cluster.levels=[{ name = \"world\", size = 0, gb_per_second = 0.4, latency_microseconds = 5.0 "
    "}]";
std::string on(int64_t chunks) { return fmt::format("tensor.tiles=on:{}", chunks); }
const Sets kLlama = {"model.family=llama", "model.shape.kv_heads=4", "model.shape.tied_head=false"};
const Sets kNormed = {"model.family=qwen3", "model.shape.bias=false", "model.shape.kv_heads=2"};
const Sets kZeroBubble = {"pipeline.order=zero-bubble-h1", "train.clip_norm=0",
                          "train.non_finite=stop"};

class Shards : public test::MeshRuns {
 protected:
  strait::Run run_of(const Case& c, const Sets& more = {}) {
    Sets sets = {fmt::format("mesh.axes.x={}", c.x),
                 fmt::format("mesh.axes.y={}", c.y),
                 fmt::format("mesh.axes.stage={}", c.stages),
                 fmt::format("mesh.axes.sequence={}", c.sequence),
                 "placement.preset=" + c.placement,
                 fmt::format("train.global_batch_size={}", kBatch),
                 "train.micro_batch_size=1",
                 "train.precision=" + c.precision,
                 fmt::format("model.shape.context={}", c.context)};
    if (c.x > 1) sets.push_back(kSplit);
    for (const Sets* other : {&test::kThreeBlocks, &c.more, &more})
      sets.insert(sets.end(), other->begin(), other->end());
    return small_run(folder_.path(), sets);
  }
  Trained train(const Case& c, const Sets& more) {
    return test::trained(run_of(c, more), c.ranks(), next_folder());
  }
  Job job_of(const Case& c, const Sets& more) { return make_job(run_of(c, more), c.ranks()); }
  std::vector<Op> step_of(const Case& c, const Sets& more) {
    return test::steady_ops(job_of(c, more));
  }
  /// X1: the bits of the plain path.
  void expect_the_same(const Case& c, const std::vector<int64_t>& chunks, const Sets& more = {}) {
    Sets base = {"train.steps=3"};
    base.insert(base.end(), more.begin(), more.end());
    Sets plain = base;
    plain.push_back(kOff);
    const Trained want = train(c, plain);
    for (const int64_t count : chunks) {
      SCOPED_TRACE(c.text() + ", " + on(count));
      Sets sets = base;
      sets.push_back(on(count));
      const Trained got = train(c, sets);
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.hash, want.hash);
      if (!std::isnan(want.validation)) {
        EXPECT_EQ(got.validation, want.validation);
      }
    }
  }
  std::string refusal(const Case& c, const Sets& sets) {
    return refusal_of([&] { job_of(c, sets); });
  }
};

bool of_shard(const Op& op) { return op.kernel != nullptr && draft::works_on_shard(op); }
int64_t shard_of(const Op& op) { return program::attribute<int64_t>(op, draft::kShard); }

TEST_F(Shards, ChunksChangeNoBit) { expect_the_same({}, {1, 2, 3, 100}); }

/// Shards of 5 rows in 1, 2 and 3 chunks and row by row; of 3, 2 and 1 rows.
TEST_F(Shards, ChunksOfAnySizeChangeNoBit) {
  const std::vector<Case> cases = {{.precision = "fp32"},
                                   {.x = 4, .context = 12},
                                   {.x = 4, .context = 4},
                                   {.x = 4, .context = 8, .more = kLlama, .precision = "fp32"},
                                   {.more = kLlama},
                                   {.more = kLlama, .precision = "bf16"},
                                   {.x = 4, .context = 12, .precision = "bf16"},
                                   {.more = {"tensor.overlap=[]"}}};
  for (const Case& c : cases) expect_the_same(c, {1, 2, 3, 100});
}

TEST_F(Shards, BesideEveryOtherAxisPlacementAndFamily) {
  const std::vector<Case> cases = {
      {.data = 2, .placement = "zero3"},
      {.data = 2, .placement = "zero3", .more = kLlama, .precision = "bf16"},
      {.data = 2, .placement = "zero1", .precision = "fp32"},
      {.y = 2},
      {.y = 2, .more = kNormed},
      {.y = 2, .data = 2, .placement = "zero3", .more = kLlama},
      {.more = kNormed},
      {.stages = 2, .more = {"train.micro_batch_size=2"}},
      {.stages = 2, .more = kZeroBubble},
      {.sequence = 2, .context = 12, .more = {"sequence.engine=gathered"}},
      {.sequence = 2, .context = 12, .more = {"sequence.engine=ring"}},
      {.sequence = 2, .context = 12, .more = {"sequence.engine=heads"}}};
  for (const Case& c : cases) expect_the_same(c, {2, 3});
}

TEST_F(Shards, RecomputationChangesNoBit) {
  for (const char* recompute : {"train.recompute=block", "train.recompute=every:2"})
    for (const Case& c : {Case{}, Case{.x = 4, .context = 12, .more = kLlama},
                          Case{.data = 2, .placement = "zero3", .precision = "bf16"}})
      expect_the_same(c, {1, 2}, {recompute});
  expect_the_same({.stages = 2, .more = kZeroBubble}, {2}, {"train.recompute=block"});
}

/// Evaluations keep nothing, so that parts of an op have values of their own between them.
TEST_F(Shards, EvaluationsAreTheSame) {
  const Sets evaluated = {"evaluation.every_steps=2", "evaluation.batches=2"};
  expect_the_same({}, {1, 2}, evaluated);
  expect_the_same({.x = 4, .context = 12, .more = kLlama}, {2}, evaluated);
  expect_the_same({.y = 2, .precision = "bf16"}, {2}, evaluated);
}

/// 20 steps in fp64.
TEST_F(Shards, EqualOneRank) {
  for (const Sets& family : {Sets{}, kLlama}) {
    const Case one{.x = 1, .context = 12, .more = family};
    const Trained want = train(one, {});
    for (const Case& c :
         {Case{.context = 12, .more = family}, Case{.x = 4, .context = 12, .more = family},
          Case{.y = 2, .context = 12, .more = family},
          Case{.data = 2, .context = 12, .placement = "zero3", .more = family}}) {
      SCOPED_TRACE(c.text());
      expect_equal(train(c, {on(2)}), want);
    }
  }
}

TEST_F(Shards, EqualThemselvesFromRunToRun) {
  const Case c{.x = 4, .context = 12, .precision = "bf16"};
  const Trained first = train(c, {"train.steps=3", on(2)}),
                second = train(c, {"train.steps=3", on(2)});
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.hash, second.hash);
}

/// X6, and the order of FLUX: a gather's product begins with the own shard, a scatter's ends with
/// it; the others follow each other from the next rank on, each of their chunks once, and at no
/// time two ranks send to one.
TEST_F(Shards, StandInTheOrderOfTheRanksBehind) {
  constexpr int64_t kRanks = 4, kChunks = 2, kRows = 3;
  const std::vector<Op> ops =
      step_of({.x = kRanks, .context = kRanks * kRows, .more = {"train.global_batch_size=1"}},
              {on(kChunks)});
  using Rows = std::pair<int64_t, int64_t>;
  std::vector<Rows> others, gathered = {{0, 0}}, scattered;  // shard, first row
  for (int64_t shard = 1; shard < kRanks; ++shard)
    for (const int64_t row : {0, 2}) others.emplace_back(shard, row);
  gathered.insert(gathered.end(), others.begin(), others.end());
  scattered = others;
  scattered.emplace_back(0, 0);
  std::map<std::string, int> found;
  for (size_t at = 0; at < ops.size();) {
    if (!of_shard(ops[at])) {
      ++at;
      continue;
    }
    const Op& first = ops[at];
    const std::string name =
        fmt::format("{} {}", draft::phase_of(first) == Phase::kForward ? "forward" : "backward",
                    segment_name(static_cast<Segment>(draft::range_of(first).begin)));
    std::vector<Rows> order;
    for (; at < ops.size() && (of_shard(ops[at]) || ops[at].kind == OpKind::kShift); ++at) {
      if (!of_shard(ops[at])) continue;
      if (ops[at].kernel != first.kernel ||
          draft::range_of(ops[at]).begin != draft::range_of(first).begin)
        break;
      order.emplace_back(shard_of(ops[at]), draft::rows_of(ops[at]).begin);
    }
    EXPECT_THAT(order, testing::AnyOf(gathered, scattered)) << name;
    ++found[name + (order == gathered ? " gathers" : " scatters")];
  }
  EXPECT_EQ(found, (std::map<std::string, int>{{"forward qkv gathers", kLayers},
                                               {"forward output scatters", kLayers},
                                               {"forward up gathers", kLayers},
                                               {"forward down scatters", kLayers},
                                               {"backward up_add gathers", kLayers},
                                               {"backward up scatters", kLayers},
                                               {"backward output gathers", kLayers},
                                               {"backward qkv scatters", kLayers}}));
  std::map<int64_t, int64_t> distances;
  for (const Op& op : ops)
    if (op.kind == OpKind::kShift) ++distances[op.peer.constant + 1];
  const int64_t each = kLayers * 8 * kChunks;
  EXPECT_EQ(distances, (std::map<int64_t, int64_t>{{1, each}, {2, each}, {3, each}}));
}

/// Nothing behind a gather waits for more than its own chunk: each product reads what one shift has
/// brought, and all shifts are under way before the first.
TEST_F(Shards, ProductsWaitForTheirChunksAlone) {
  const std::vector<Op> ops = step_of({.more = {"train.global_batch_size=1"}}, {on(2)});
  int64_t checked = 0;
  for (size_t at = 0; at < ops.size(); ++at) {
    if (!of_shard(ops[at]) || shard_of(ops[at]) == 0) continue;
    const auto brings = [&](const Op& op) {
      return op.kind == OpKind::kShift &&
             std::ranges::any_of(ops[at].reads, [&](const program::Operand& read) {
               return read.array == op.writes.front().array &&
                      read.index == op.writes.front().index;
             });
    };
    const int64_t brought =
        std::count_if(ops.begin(), ops.begin() + static_cast<int64_t>(at), brings);
    const bool gathers = brought > 0;
    if (!gathers) continue;
    ++checked;
    const auto joined = std::ranges::count_if(ops[at].reads, [](const program::Operand& read) {
      return draft::is_exchanged_by_rows(read.slot);
    });
    EXPECT_EQ(joined, 1);
  }
  EXPECT_EQ(checked, kLayers * 4 * 2);
}

TEST_F(Shards, ThePlanSaysHowManyChunks) {
  const auto lines = [&](const std::string& tiles) {
    const Job job = job_of({}, {tiles});
    return cli::plan_lines(job.design, job.simulated, job.cost);
  };
  EXPECT_THAT(lines(on(2)), testing::Contains(testing::AllOf(
                                testing::HasSubstr("products in chunks of rows: qkv "),
                                testing::HasSubstr("qkv forward 3"))));
  EXPECT_THAT(lines(kOff), testing::Not(testing::Contains(testing::HasSubstr("chunks of rows"))));
}

/// X3: what is shifted is what was gathered and scattered, whatever the chunks: per block and
/// micro-batch of R rows (x - 1) R C numbers for each of four gathers and four scatters, of which
/// those of the forward are wide, and with recomputation two gathers and a wide scatter more.
TEST_F(Shards, BytesAndWorkAreThoseOfThePlainPath) {
  const Sets again = {"train.recompute=block"};
  for (const Case& c : {Case{}, Case{.x = 4, .context = 12}, Case{.y = 2, .more = kLlama},
                        Case{.precision = "bf16"}, Case{.more = again},
                        Case{.x = 4, .context = 12, .more = again, .precision = "bf16"}}) {
    SCOPED_TRACE(c.text());
    const Sets sets = {"train.steps=3", kOneLevel};
    Sets plain = sets;
    plain.push_back(kOff);
    const Job want = job_of(c, plain);
    Bytes bytes = test::bytes_of(want.cost.traffic, 1);
    const int64_t narrow = c.precision == "bf16" ? 2 : 8, wide = narrow == 2 ? 4 : 8;
    const int64_t stream = (c.x - 1) * kBatch * c.context * kWidth * kLayers;
    const bool recomputes = c.more == again;
    const int64_t gathered = stream * (recomputes ? 6 : 4) * narrow;
    const int64_t scattered = stream * ((recomputes ? 3 : 2) * wide + 2 * narrow);
    bytes[{"all-gather", 0}] -= gathered;
    bytes[{"reduce-scatter", 0}] -= scattered;
    bytes[{"shift", 0}] += gathered + scattered;
    for (const int64_t count : {1, 2, 5}) {
      Sets more = sets;
      more.push_back(on(count));
      strait::Run run = run_of(c, more);
      run.output.run_dir = next_folder();
      const Job job = make_job(run, c.ranks());
      EXPECT_NEAR(job.cost.flops, want.cost.flops, 1e-12 * want.cost.flops);
      const train::Outcome outcome = test::outcome_of(job);
      test::expect_bytes(job, outcome.traffic, 3, bytes);
    }
  }
}

TEST_F(Shards, MemoryIsWhatTheAllocatorSaw) {
  for (const Sets& more : {Sets{}, Sets{"train.recompute=block"}}) {
    const Case c{.data = 2, .context = 64, .placement = "zero3", .more = more};
    test::expect_predicted_memory(
        test::train_small(run_of(c, {"train.steps=3", on(3)}), c.ranks(), next_folder()));
  }
}

/// Effective communication time of a step: what its compute stream waits for exchanges.
class ShardHiding : public test::HidingRuns<Shards, Case> {
 protected:
  /// What a step takes to add up what has come.
  double adding_up(const std::string& tiles) {
    const Job job = job_of({}, sets(1, tiles, 1));
    const program::Program& program = job.design.steady().front();
    double sums = 0;
    program::for_each_instance(program, [&](const Op& op, const program::Loops&) {
      if (op.kernel == &draft::kSumShards)
        sums += cost::compute_seconds(program, op, job.design.cluster);
    });
    return sums;
  }
  /// At which the shifts take as long as the products that stand beside them.
  double equal_gigabytes() {
    const Job job = job_of({}, sets(1, on(4), 0.001));
    const program::Program& program = job.design.steady().front();
    double products = 0, shifts = 0;
    program::for_each_instance(program, [&](const Op& op, const program::Loops&) {
      if (of_shard(op)) products += cost::compute_seconds(program, op, job.design.cluster);
      if (op.kind == OpKind::kShift)
        shifts += cost::transfer_seconds(program, op, 0, job.design.cluster);
    });
    return shifts / products;
  }
};

TEST_F(ShardHiding, SixtyPercentOfTheExchangesWhereTheyTakeAsLongAsTheirProducts) {
  expect_sixty_percent(equal_gigabytes());
}

/// X2, and users' wish (7e): never slower than predicted for the plain path.
TEST_F(ShardHiding, AutomaticIsThePlainPathWhereThatIsFaster) {
  const double rate = equal_gigabytes();
  const auto count = [&](double gigabytes, double microseconds) {
    const std::vector<Op> ops = step_of({}, sets(gigabytes, "tensor.tiles=auto", microseconds));
    return std::ranges::count_if(ops, of_shard);
  };
  EXPECT_GT(count(rate, 1), 0);
  EXPECT_EQ(count(rate, 1e6), 0) << "latencies are longer than products";
  EXPECT_EQ(count(kEnough, 0.001), 0) << "there is nothing to hide";
  // All that is left is adding up, which a collective would do beside.
  EXPECT_NEAR(seconds(kEnough, on(4), 0.001), seconds(kEnough, kOff, 0.001) + adding_up(on(4)),
              1e-3 * seconds(kEnough, kOff, 0.001));
  expect_never_slower(rate);
}

/// X7: a lost rank is named within the deadline, in a gather and in a scatter.
TEST_F(Shards, ALostRankInAChunkIsNamed) {
  const Case c{.x = 2, .data = 2, .placement = "zero3"};
  for (const char* value : {"normed_mlp.rows[", "output_sum.rows["}) {
    strait::Run run = run_of(c, {on(3), "runtime.deadline_seconds=1"});
    run.output.run_dir = next_folder();
    const Job job = make_job(run, c.ranks());
    train::Hooks hooks;
    hooks.faults.lost_rank = 1;
    hooks.faults.lost_step = 2;
    for (const test::Instance& instance : test::instances_of(job.design.steady().front()))
      if (instance.transfer && instance.text.find(value) != std::string::npos)
        hooks.faults.lost_operation = instance.text;
    ASSERT_NE(hooks.faults.lost_operation, "");
    const std::atomic<int> no_signal{0};
    train::Outcome outcome;
    try {
      train::train(job, {}, no_signal, outcome, hooks);
      ADD_FAILURE() << "nobody missed it";
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int>(error.code()), 4);
      EXPECT_EQ(error.place().rank, 1) << error.what();
      EXPECT_EQ(error.place().operation, hooks.faults.lost_operation) << error.what();
    }
  }
}

TEST_F(Shards, WhatCannotTakeEffectIsRefused) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal({}, {"tensor.tiles=on", "train.global_batch_size=16"}),
              HasSubstr("tensor.tiles: tensor.tiles = \"on\" cannot take any product apart: a "
                        "micro-batch has 10 rows of a rank, a chunk of every shard 32; the nearest "
                        "valid value is \"off\", or train.micro_batch_size = 4"));
  EXPECT_EQ(refusal({.context = 32}, {"tensor.tiles=on"}), "accepted");
  EXPECT_THAT(refusal({.x = 4, .context = 12}, {on(2), test::kPairs}),
              HasSubstr("a level of the cluster parts the ranks of x, so that exchanges go inside "
                        "its parts first; the nearest valid value is \"off\""));
  EXPECT_EQ(refusal({.x = 4, .context = 12}, {"tensor.tiles=auto", test::kPairs}), "accepted");
  EXPECT_THAT(refusal({.x = 4, .context = 10}, {on(2)}),
              HasSubstr("tensor.sequence_parallel: tensor.sequence_parallel = true cannot give "
                        "mesh.axes.x = 4 ranks the same number of the 10 rows"));
}

}  // namespace
}  // namespace strait
