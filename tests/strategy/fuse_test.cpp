// Ranges of segments in programs: cut where a sum may stand, joined where none does.
#include "strait/strategy/fuse/fuse.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "strait/config/parse.h"
#include "strait/draft/segment_ops.h"
#include "strait/verify/verify.h"
#include "tests/strategy/passes.h"

namespace strait::strategy {
namespace {

using draft::Draft;
using program::Op;
using program::Program;
using test::compose_with;
using test::Passes;

constexpr int64_t kRanks = 4;

/// Everything that a program is composed from.
struct Example {
  explicit Example(const std::string& preset = "zero3", Purpose purpose = Purpose::kTrain,
                   int64_t recompute = 0)
      : mesh({}, kRanks) {
    ShapeOptions shape_options;
    shape_options.layers = 3;
    shape_options.heads = shape_options.kv_heads = 2;
    shape_options.width = 8;
    shape_options.ffn_width = 32;
    shape_options.context = 4;
    shape_options.dropout = 0.1;
    shape = gpt2_shape(shape_options, 11);
    cluster.ranks = kRanks;
    cluster.levels = {{"pair", 2, 1e10, 1e-6, 1}, {"world", kRanks / 2, 1e9, 5e-6, 1}};
    placement = resolve_placement(parse_run("", "test.toml", {"placement.preset=" + preset}),
                                  cluster, kRanks);
    options.purpose = purpose;
    options.tokens = 4;
    options.accumulation = 4;
    options.recompute = {recompute};
    options.optimizer = {{"m", "first_moment"}, {"v", "second_moment"}};
  }
  Program with(const Passes& passes) const {
    return compose_with({shape, placement, cluster, mesh}, options,
                        options.purpose == Purpose::kTrain ? "steady" : "evaluation", passes);
  }
  Passes fusing(int times = 1) const {
    return [this, times](Draft& draft) {
      for (int i = 0; i < times; ++i) fuse(draft, shape, options);
    };
  }

  ModelShape shape;
  Cluster cluster;
  Placement placement;
  Mesh mesh;
  StepOptions options;
};

std::vector<Example> examples() {
  std::vector<Example> all;
  for (const char* preset : {"ddp", "zero1", "zero3", "hsdp", "zero++"})
    for (const int64_t recompute : {0, 1, 2})
      for (const Purpose purpose : {Purpose::kTrain, Purpose::kEvaluate})
        all.emplace_back(preset, purpose, recompute);
  return all;
}

std::vector<Op> ops_of(const Program& program) {
  std::vector<Op> ops;
  program::for_each_op(program.body, [&](const Op& op) { ops.push_back(op); });
  return ops;
}

bool declares(const Program& program, const std::string& name) {
  return std::ranges::any_of(program.arrays,
                             [&](const program::ValueArray& array) { return array.name == name; });
}

/// "forward_segments 0..4" of the first transformer block's visits, in order.
std::vector<std::string> ranges_of(const Program& program) {
  std::vector<std::string> ranges;
  program::for_each_instance(program, [&](const Op& op, const std::vector<int64_t>& loops) {
    if (!draft::works_on_segments(op)) return;
    if (program::evaluate(program::attribute<program::Index>(op, draft::kBlock), loops) != 1)
      return;
    const SegmentRange range = draft::range_of(op);
    ranges.push_back(std::string(program::op_name(op)) + " " + std::to_string(range.begin) + ".." +
                     std::to_string(range.end));
  });
  return ranges;
}

void nothing(Draft&) {}

TEST(Fuse, WithoutItBlocksAreCutBehindEverySumAndAtAttention) {
  Example example;
  example.options.accumulation = 1;
  EXPECT_EQ(ranges_of(example.with(nothing)),
            (std::vector<std::string>{
                "forward_segments 0..1",   "forward_segments 1..3",   "forward_segments 3..4",
                "forward_segments 4..5",   "forward_segments 5..6",   "forward_segments 6..7",
                "forward_segments 7..9",   "forward_segments 9..11",  "forward_segments 11..13",
                "forward_segments 13..14", "forward_segments 14..15", "backward_input 14..15",
                "backward_input 12..14",   "backward_input 10..12",   "backward_input 9..10",
                "backward_input 7..9",     "backward_input 5..7",     "backward_input 4..5",
                "backward_input 3..4",     "backward_input 2..3",     "backward_input 1..2",
                "backward_input 0..1",     "backward_weight 0..15"}));
  example.options.recompute = {1};
  const std::vector<std::string> again = ranges_of(example.with(nothing));
  EXPECT_EQ(again.size(), 32U);
  EXPECT_EQ(again[19], "forward_segments 11..12") << "down is not computed again";
}

TEST(Fuse, ProgramsAreLegalWithItAndWithoutIt) {
  for (const Example& example : examples()) {
    for (const Program& program : {example.with(nothing), example.with(example.fusing())}) {
      const std::vector<program::Problem> problems = program::verify({program});
      EXPECT_TRUE(problems.empty()) << problems.front().message;
    }
  }
}

TEST(Fuse, WhereNothingIsSplitBlocksAreFusedAndNothingPassesInsideThem) {
  for (const Example& example : examples()) {
    const Program fused = example.with(example.fusing());
    EXPECT_TRUE(std::ranges::none_of(ops_of(fused), draft::works_on_segments));
    for (const char* name : {"output_sum", "down_sum", "middle", "normed_mlp_gradient", "bundle"})
      EXPECT_FALSE(declares(fused, name)) << name;
    EXPECT_EQ(fused, compose(example.shape, example.placement, example.cluster, example.options));
  }
}

TEST(Fuse, AppliedAgainItChangesNothing) {
  for (const Example& example : examples())
    EXPECT_EQ(example.with(example.fusing(2)), example.with(example.fusing()));
}

/// A kernel of this test: looks at a partial sum.
const program::Kernel kPeek{"peek", program::Bound::kNothing, {{"sum", program::kReads}}, {}};

/// A pass of this test: looks at what the attention of every block adds up.
void peek(Draft& draft) {
  draft.schedule.micro_step = [whole = draft.schedule.micro_step](int64_t number,
                                                                  const program::Index& index) {
    draft::MicroStep step = whole(number, index);
    for (draft::Visit& visit : step.visits) {
      const auto sums = std::ranges::find_if(visit.ops, [](const Op& op) {
        return draft::works_on_segments(op) && draft::range_of(op).end == 6;
      });
      if (sums == visit.ops.end()) continue;
      const int slot = draft::block_slot(BlockValue::kOutputSum);
      Op op = draft::kernel_op(kPeek);
      op.reads = {program::as(*program::operand_in(sums->writes, slot), program::Access::kRead)};
      visit.ops.insert(sums + 1, std::move(op));
    }
    return step;
  };
}

TEST(Fuse, WhatAPassPutsBetweenRangesKeepsThemApart) {
  for (const Purpose purpose : {Purpose::kTrain, Purpose::kEvaluate}) {
    Example example("zero3", purpose);
    example.options.accumulation = 1;
    const Program program = example.with([&](Draft& draft) {
      peek(draft);
      fuse(draft, example.shape, example.options);
    });
    EXPECT_TRUE(program::verify({program}).empty());
    EXPECT_EQ(ranges_of(program),
              (std::vector<std::string>{"forward_segments 0..6", "forward_segments 6..15"}));
    EXPECT_TRUE(declares(program, "output_sum"));
    for (const char* name : {"down_sum", "middle", "bundle", "normed_mlp_gradient"})
      EXPECT_FALSE(declares(program, name)) << name << " is needed by nobody";
  }
}

TEST(Fuse, OnlyNeighboursAreJoined) {
  Example example("ddp", Purpose::kEvaluate);
  const Program program = example.with([&](Draft& draft) {
    draft.schedule.micro_step = [whole = draft.schedule.micro_step](int64_t number,
                                                                    const program::Index& index) {
      draft::MicroStep step = whole(number, index);
      for (draft::Visit& visit : step.visits)
        if (draft::works_on_segments(visit.ops.front()))
          visit.ops.insert(visit.ops.begin(), visit.ops.front());
      return step;
    };
    fuse(draft, example.shape, example.options);
  });
  EXPECT_EQ(ranges_of(program), std::vector<std::string>{"forward_segments 0..1"})
      << "done twice: alone, then as part of the block";
  EXPECT_TRUE(program::verify({program}).empty());
}

double flops_of(const Program& program) {
  double flops = 0;
  program::for_each_instance(program, [&](const Op& op, const std::vector<int64_t>&) {
    flops += program::cost_of(program, op, 0).flops;
  });
  return flops;
}

TEST(Fuse, RangesCostTogetherWhatTheBlockCosts) {
  for (const char* preset : {"ddp", "zero3"}) {
    const Example example(preset);
    EXPECT_DOUBLE_EQ(flops_of(example.with(nothing)), flops_of(example.with(example.fusing())));
  }
}

}  // namespace
}  // namespace strait::strategy
