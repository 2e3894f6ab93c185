// Products beside the sums of their results over x (tensor.tiles; specs: overlap 7, invariants X1
// to X4 and X7): chunks change neither bits nor bytes, whatever the number of rows, and hide the
// sums.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/cli/plan_text.h"
#include "strait/cost/cost.h"
#include "strait/draft/segment_ops.h"
#include "strait/program/memory.h"
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
using test::small_run;
using test::Trained;
using Sets = std::vector<std::string>;

struct Case {
  int64_t x = 2, y = 1, data = 1, stages = 1, sequence = 1;
  std::string placement = "ddp";
  Sets more = {};
  std::string precision = "fp64";
  int64_t ranks() const { return x * y * data * stages * sequence; }
  std::string text() const {
    return fmt::format("{} x {}, data {}, stages {}, sequence {}, {}, {}{}", x, y, data, stages,
                       sequence, placement, precision, more.empty() ? "" : ", " + more.front());
  }
};

const std::string kOff = "tensor.tiles=off";
constexpr const char* kOneLevel =
    "cluster.levels=[{ name = \"world\", size = 0, gb_per_second = 0.4, latency_microseconds = 5.0 "
    "}]";
std::string on(int64_t chunks) { return fmt::format("tensor.tiles=on:{}", chunks); }
const Sets kLlama = {"model.family=llama", "model.shape.kv_heads=4", "model.shape.tied_head=false"};
const Sets kNormed = {"model.family=qwen3", "model.shape.bias=false", "model.shape.kv_heads=2"};
const Sets kZeroBubble = {"pipeline.order=zero-bubble-h1", "train.clip_norm=0",
                          "train.non_finite=stop"};

class Tiles : public test::MeshRuns {
 protected:
  strait::Run run_of(const Case& c, const Sets& more = {}) {
    Sets sets = {fmt::format("mesh.axes.x={}", c.x),
                 fmt::format("mesh.axes.y={}", c.y),
                 fmt::format("mesh.axes.stage={}", c.stages),
                 fmt::format("mesh.axes.sequence={}", c.sequence),
                 "placement.preset=" + c.placement,
                 "train.steps=3",
                 "train.global_batch_size=4",
                 "train.micro_batch_size=1",
                 "train.precision=" + c.precision,
                 c.sequence > 1 ? "model.shape.context=8" : "model.shape.context=7"};
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
  void expect_the_same(const Case& c, const std::vector<int64_t>& chunks, const Sets& more = {}) {
    Sets plain = more;
    plain.push_back(kOff);
    const Trained want = train(c, plain);
    for (const int64_t count : chunks) {
      SCOPED_TRACE(c.text() + ", " + on(count));
      Sets sets = more;
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

bool in_rows(const Op& op) { return op.kernel != nullptr && draft::works_on_rows(op); }

/// 7 rows in 2, 3, 4 (by 2: uneven) and 7 chunks, of which 100 ask for more than there are.
TEST_F(Tiles, ChunksChangeNoBit) {
  const std::vector<Case> cases = {
      {},
      {.x = 4, .precision = "fp32"},
      {.more = kLlama, .precision = "fp32"},
      {.x = 4, .more = kLlama},
      {.data = 2, .placement = "zero3"},
      {.data = 2, .placement = "zero3", .more = kLlama, .precision = "fp32"},
      {.more = {"train.recompute=block"}},
      {.data = 2, .placement = "zero1", .more = {"train.recompute=every:2"}, .precision = "fp32"},
      {.more = {"tensor.overlap=[]"}}};
  for (const Case& c : cases) expect_the_same(c, {2, 3, 4, 100});
}

TEST_F(Tiles, BesideEveryOtherAxisAndFamily) {
  const std::vector<Case> cases = {{.y = 2},
                                   {.y = 2, .more = kNormed},
                                   {.y = 2, .data = 2, .placement = "zero3", .more = kLlama},
                                   {.stages = 2, .more = {"train.micro_batch_size=2"}},
                                   {.stages = 2, .more = kZeroBubble},
                                   {.sequence = 2, .more = {"sequence.engine=gathered"}},
                                   {.sequence = 2, .more = {"sequence.engine=ring"}},
                                   {.sequence = 2, .more = {"sequence.engine=heads"}},
                                   {.data = 2, .placement = "zero3", .precision = "bf16"}};
  for (const Case& c : cases) expect_the_same(c, {2, 3});
}

/// Evaluations keep nothing, so their products find their inputs in values of their own.
TEST_F(Tiles, EvaluationsAreTheSame) {
  const Sets evaluated = {"evaluation.every_steps=2", "evaluation.batches=2"};
  expect_the_same({}, {3}, evaluated);
  expect_the_same({.x = 4, .more = kLlama}, {2}, evaluated);
}

TEST_F(Tiles, EqualOneRank) {
  for (const Sets& family : {Sets{}, kLlama}) {
    const Case one{.x = 1, .more = family};
    const Trained want = train(one, {});
    for (const Case& c : {Case{.more = family}, Case{.x = 4, .more = family},
                          Case{.data = 2, .placement = "zero3", .more = family}})
      expect_equal(train(c, {on(3)}), want);
  }
}

/// Every product whose result is summed over x: two in the forward, two in the backward.
TEST_F(Tiles, EachSumStandsBehindItsChunk) {
  const std::vector<Op> ops = step_of({.more = {"train.global_batch_size=1"}}, {on(3)});
  std::map<std::string, int64_t> rows;
  for (size_t at = 0; at < ops.size(); ++at) {
    if (!in_rows(ops[at])) continue;
    const program::IntegerRange range = draft::rows_of(ops[at]);
    rows[segment_name(static_cast<Segment>(draft::range_of(ops[at]).begin))] +=
        range.end - range.begin;
    ASSERT_LT(at + 1, ops.size());
    ASSERT_EQ(ops[at + 1].kind, OpKind::kAllReduce);
    const auto made = [&](const program::Operand& operand) {
      return operand.array == ops[at + 1].reads.front().array &&
             operand.index == ops[at + 1].reads.front().index;
    };
    EXPECT_TRUE(std::ranges::any_of(ops[at].writes, made));
  }
  const int64_t all = 3 * 7;  // blocks, rows
  EXPECT_EQ(rows, (std::map<std::string, int64_t>{
                      {"output", all}, {"down", all}, {"up", all}, {"qkv", all}}));
}

TEST_F(Tiles, ThePlanSaysHowManyChunks) {
  const auto lines = [&](const std::string& tiles) {
    const Job job = job_of({}, {tiles});
    return cli::plan_lines(job.design, job.simulated, job.cost);
  };
  EXPECT_THAT(lines(on(3)), testing::Contains("tiles       products in chunks of rows: qkv 3, "
                                              "output 3, up 3, down 3"));
  EXPECT_THAT(lines(kOff), testing::Not(testing::Contains(testing::HasSubstr("chunks of rows"))));
}

/// X3: nothing moves that the plain path does not move, and nothing is computed twice.
TEST_F(Tiles, BytesAndWorkAreThoseOfThePlainPath) {
  for (const Case& c : {Case{}, Case{.x = 4}, Case{.y = 2, .more = kLlama},
                        Case{.data = 2, .placement = "zero3"}}) {
    SCOPED_TRACE(c.text());
    // Four ranks in pairs would sum vectors this short another way than shorter ones.
    const Sets sets = {"train.steps=3", c.x == 4 ? kOneLevel : test::kPairs};
    Sets plain = sets;
    plain.push_back(kOff);
    const Job want = job_of(c, plain);
    for (const int64_t count : {2, 3, 7}) {
      Sets more = sets;
      more.push_back(on(count));
      strait::Run run = run_of(c, more);
      run.output.run_dir = next_folder();
      const Job job = make_job(run, c.ranks());
      EXPECT_NEAR(job.cost.flops, want.cost.flops, 1e-12 * want.cost.flops);
      const train::Outcome outcome = test::outcome_of(job);
      test::expect_bytes(job, outcome.traffic, 3, test::bytes_of(want.cost.traffic, 1));
      EXPECT_EQ(test::bytes_of(want.simulated.traffic, 1), test::bytes_of(want.cost.traffic, 1));
    }
  }
}

TEST_F(Tiles, MemoryIsWhatTheAllocatorSaw) {
  for (const Sets& more : {Sets{}, Sets{"train.recompute=block"}}) {
    const Case c{.data = 2, .placement = "zero3", .more = more};
    test::expect_predicted_memory(test::train_small(
        run_of(c, {"train.steps=3", "model.shape.context=64", on(3)}), c.ranks(), next_folder()));
  }
}

/// Effective communication time of a step: what its compute stream waits for sums.
class Hiding : public test::HidingRuns<Tiles, Case> {
 protected:
  /// At which the sums of chunked products take as long as these products.
  double equal_gigabytes() {
    const Job job = job_of({}, sets(1, on(4), 0.001));
    const program::Program& program = job.design.steady().front();
    double products = 0, sums = 0;
    const Op* before = nullptr;
    program::for_each_instance(program, [&](const Op& op, const program::Loops&) {
      if (in_rows(op)) products += cost::compute_seconds(program, op, job.design.cluster);
      if (before != nullptr && in_rows(*before) && op.kind == OpKind::kAllReduce)
        sums += cost::transfer_seconds(program, op, 0, job.design.cluster);
      before = &op;
    });
    return sums / products;
  }
};

TEST_F(Hiding, SixtyPercentOfTheSumsWhereTheyTakeAsLongAsTheirProducts) {
  expect_sixty_percent(equal_gigabytes());
}

/// X2, and users' wish (7e): never slower than predicted for the plain path.
TEST_F(Hiding, AutomaticIsThePlainPathWhereThatIsFaster) {
  const double rate = equal_gigabytes();
  const auto count = [&](double gigabytes, double microseconds) {
    const std::vector<Op> ops = step_of({}, sets(gigabytes, "tensor.tiles=auto", microseconds));
    return std::ranges::count_if(ops, in_rows);
  };
  EXPECT_GT(count(rate, 1), 0);
  EXPECT_EQ(count(rate, 1e5), 0) << "latencies are longer than products";
  EXPECT_EQ(count(kEnough, 0.001), 0) << "there is nothing to hide";
  expect_never_slower(rate);
}

/// X7: a lost or stalled rank is named within the deadline.
TEST_F(Tiles, ALostRankInAChunkIsNamed) {
  const Case c{.x = 2, .data = 2, .placement = "zero3"};
  strait::Run run = run_of(c, {on(3), "runtime.deadline_seconds=1"});
  run.output.run_dir = next_folder();
  const Job job = make_job(run, c.ranks());
  train::Hooks hooks;
  hooks.faults.lost_rank = 1;
  hooks.faults.lost_step = 2;
  for (const test::Instance& instance : test::instances_of(job.design.steady().front()))
    if (instance.transfer && instance.text.find("output_sum.rows[1]") != std::string::npos)
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

TEST_F(Tiles, WhatCannotTakeEffectIsRefused) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal({}, {"tensor.tiles=on:0"}), HasSubstr("tensor.tiles"));
  EXPECT_THAT(refusal({}, {"tensor.tiles=all"}), HasSubstr("tensor.tiles"));
  EXPECT_THAT(refusal({.x = 1}, {on(2)}),
              HasSubstr("tensor.tiles: tensor.tiles = \"on:2\" cannot take effect with "
                        "mesh.axes.x = 1; the nearest valid value is \"auto\""));
  EXPECT_THAT(refusal({}, {"tensor.tiles=on", "train.global_batch_size=8"}),
              HasSubstr("tensor.tiles: tensor.tiles = \"on\" cannot take any product apart: a "
                        "micro-batch has 7 rows of a rank, two chunks 32; the nearest valid value "
                        "is \"off\", or train.micro_batch_size = 8"));
  EXPECT_EQ(refusal({}, {"tensor.tiles=on", "model.shape.context=40"}), "accepted");
  EXPECT_THAT(refusal({}, {on(1)}),
              HasSubstr("tensor.tiles: tensor.tiles = \"on:1\" cannot take any product apart: "
                        "without tensor.sequence_parallel one chunk is the whole product; the "
                        "nearest valid value is \"off\""));
  EXPECT_THAT(refusal({.x = 4}, {on(2), test::kPairs}),
              HasSubstr("smaller sums would go another way over the levels of the cluster; the "
                        "nearest valid value is \"off\""));
  EXPECT_EQ(refusal({.x = 1}, {kOff}), "accepted");
}

}  // namespace
}  // namespace strait
