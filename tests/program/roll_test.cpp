#include "strait/program/roll.h"

#include <gtest/gtest.h>

#include <set>

#include "strait/base/random.h"

namespace strait::program {
namespace {

Operand value(int array, int64_t index) { return {array, {index, -1, 0}, Role::kSource}; }

Op simple(OpKind kind, std::vector<Operand> reads, std::vector<Operand> writes, int stream = 0) {
  Op op;
  op.kind = kind;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  op.stream = stream;
  return op;
}

Op block_op(OpKind kind, int64_t block, std::vector<Operand> reads, std::vector<Operand> writes) {
  Op op = simple(kind, std::move(reads), std::move(writes));
  op.block.constant = block;
  return op;
}

/// Rolls `nodes` and checks that nothing changes: operations, order, indices.
Program rolled(const std::vector<Node>& nodes) {
  Program program;
  program.body = roll(nodes, program.num_loops, "i");
  const Program flat = unroll(program);
  EXPECT_EQ(flat.body, nodes);
  EXPECT_EQ(count_instances(program), static_cast<int64_t>(nodes.size()));
  return program;
}

enum Array { kTokens, kShard, kGathered, kActivation, kSaved, kFlow, kGradient, kGradientShard };

/// A chain of blocks as zero3 runs it, with gathers `prefetch` blocks ahead and only every
/// `every`-th activation kept: forward, then backward with the forwards of each span run again.
std::vector<Node> chain(int64_t blocks, int64_t prefetch, int64_t every) {
  std::vector<Node> nodes;
  const auto gather = [&](int64_t i) {
    Op op = simple(OpKind::kAllGather, {value(kShard, i)}, {value(kGathered, i)}, 1);
    op.group = 0;
    nodes.emplace_back(op);
  };
  const auto free_value = [&](int array, int64_t i) {
    nodes.emplace_back(simple(OpKind::kFree, {value(array, i)}, {}));
  };
  for (int64_t i = 0; i < std::min(prefetch, blocks); ++i) gather(i);
  for (int64_t i = 0; i < blocks; ++i) {
    if (i + prefetch < blocks) gather(i + prefetch);
    nodes.emplace_back(block_op(OpKind::kForward, i, {value(kActivation, i), value(kGathered, i)},
                                {value(kActivation, i + 1)}));
    free_value(kGathered, i);
    if (i % every != 0) free_value(kActivation, i);
  }
  for (int64_t end = blocks; end > 0; end -= every) {
    const int64_t begin = std::max<int64_t>(end - every, 0);
    for (int64_t i = begin; i < end; ++i) {
      gather(i);
      nodes.emplace_back(block_op(OpKind::kForward, i, {value(kActivation, i), value(kGathered, i)},
                                  {value(kActivation, i + 1), value(kSaved, i)}));
    }
    for (int64_t i = end - 1; i >= begin; --i) {
      nodes.emplace_back(block_op(OpKind::kBackward, i,
                                  {value(kFlow, i + 1), value(kSaved, i), value(kGathered, i)},
                                  {value(kFlow, i), value(kGradient, i)}));
      free_value(kSaved, i);
      free_value(kGathered, i);
      Op reduce =
          simple(OpKind::kReduceScatter, {value(kGradient, i)}, {value(kGradientShard, i)}, 2);
      reduce.accumulate = true;
      nodes.emplace_back(reduce);
      free_value(kGradient, i);
    }
  }
  return nodes;
}

TEST(Roll, KeepsEverythingAndForgetsTheNumberOfBlocks) {
  for (const int64_t prefetch : {0, 1, 2, 5}) {
    for (const int64_t every : {1, 2, 3, 4}) {
      const int64_t small = count_ops(rolled(chain(24, prefetch, every)));
      const int64_t large = count_ops(rolled(chain(96, prefetch, every)));
      EXPECT_EQ(small, large) << "prefetch " << prefetch << ", every " << every;
      EXPECT_LT(large, 30 * every + 8 * prefetch) << "prefetch " << prefetch << ", every " << every;
    }
  }
}

TEST(Roll, LoopVariableIsTheBlock) {
  std::vector<Node> nodes;
  for (int64_t i = 11; i >= 0; --i) {
    nodes.emplace_back(simple(OpKind::kAllGather, {value(0, i - 1)}, {value(1, i - 1)}, 1));
    nodes.emplace_back(block_op(OpKind::kBackward, i, {value(1, i)}, {value(2, 3 * i)}));
  }
  const Program program = rolled(nodes);
  ASSERT_EQ(program.body.size(), 1u);
  const Repeat& repeat = std::get<Repeat>(program.body[0]);
  EXPECT_EQ(repeat.first, 11);
  EXPECT_EQ(repeat.step, -1);
  EXPECT_EQ(repeat.count, 12);
  EXPECT_EQ(repeat.variable, "i");
  const Op& gather = std::get<Op>(repeat.body[0]);
  EXPECT_EQ(gather.reads[0].index, (Index{-1, repeat.loop, 1}));
  const Op& backward = std::get<Op>(repeat.body[1]);
  EXPECT_EQ(backward.block, (Index{0, repeat.loop, 1}));
  EXPECT_EQ(backward.writes[0].index, (Index{0, repeat.loop, 3}));
  EXPECT_EQ(repeat.carried, std::vector<int>{1});
}

TEST(Roll, LoopVariableCountsWhenBlocksDoNotDivide) {
  std::vector<Node> nodes;
  for (int64_t k = 0; k < 4; ++k) {
    nodes.emplace_back(block_op(OpKind::kForward, 5 + 2 * k, {value(0, 3 * k)}, {value(1, 0)}));
    nodes.emplace_back(simple(OpKind::kFree, {value(1, 0)}, {}));
  }
  const Program program = rolled(nodes);
  const Repeat& repeat = std::get<Repeat>(program.body.at(0));
  EXPECT_EQ(repeat.first, 0);
  EXPECT_EQ(repeat.step, 1);
  EXPECT_EQ(std::get<Op>(repeat.body[0]).block, (Index{5, repeat.loop, 2}));
}

TEST(Roll, IndicesOfEnclosingLoopsStayAndMustBeEqual) {
  std::vector<Node> nodes;
  for (int64_t i = 0; i < 6; ++i) {
    Op op = block_op(OpKind::kForward, i, {value(0, i)}, {value(0, i + 1)});
    op.micro_batch = {0, 7, 1};
    nodes.emplace_back(op);
  }
  int next_loop = 8;
  std::vector<Node> result = roll(nodes, next_loop, "i");
  ASSERT_EQ(result.size(), 1u);
  EXPECT_EQ(next_loop, 9);
  EXPECT_EQ(std::get<Repeat>(result[0]).loop, 8);
  EXPECT_EQ(std::get<Op>(std::get<Repeat>(result[0]).body[0]).micro_batch, (Index{0, 7, 1}));

  for (int64_t i = 0; i < 6; ++i) std::get<Op>(nodes[i]).micro_batch = {i, 7, 1};
  EXPECT_EQ(roll(nodes, next_loop, "i"), nodes);
}

TEST(Roll, EveryFieldMustBeEqual) {
  const auto stays = [](auto change) {
    std::vector<Node> nodes;
    for (int64_t i = 0; i < 4; ++i) {
      nodes.emplace_back(block_op(OpKind::kForward, i, {value(0, i)}, {value(0, i + 1)}));
      if (i % 2 == 1) change(std::get<Op>(nodes.back()), i);
    }
    for (size_t i = 1; i < nodes.size(); i += 2) change(std::get<Op>(nodes[i]), 100 * i * i * i);
    int next_loop = 0;
    return roll(nodes, next_loop, "i") == nodes;
  };
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.unit = i; }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.flops = static_cast<double>(i); }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.memory_bytes = static_cast<double>(i); }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.workspace_bytes = i; }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.partition.elements = i; }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.partition.grain = i; }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.codec = std::to_string(i); }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.custom = std::to_string(i); }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.segment_begin = static_cast<int>(i); }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.segment_end = static_cast<int>(i); }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.stream = static_cast<int>(i); }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.group = static_cast<int>(i); }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.reads[0].array = static_cast<int>(i); }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.waits = {value(static_cast<int>(i), 0)}; }));
  EXPECT_TRUE(stays([](Op& op, int64_t i) { op.block = {i, 3, i}; }));
}

TEST(Roll, RandomSequencesSurvive) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const RandomStream random(seed, "roll");
    uint64_t counter = 0;
    const auto below = [&](uint64_t bound) {
      return static_cast<int64_t>(random.below(counter++, bound));
    };
    std::vector<Node> nodes;
    const int64_t pieces = 1 + below(4);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t period = 1 + below(4), count = 1 + below(6);
      std::vector<Op> body;
      std::vector<int64_t> deltas;
      for (int64_t p = 0; p < period; ++p) {
        body.push_back(block_op(below(2) ? OpKind::kForward : OpKind::kFree, below(3),
                                {value(static_cast<int>(below(2)), below(3))}, {}));
        deltas.push_back(below(5) - 2);
      }
      for (int64_t k = 0; k < count; ++k) {
        for (int64_t p = 0; p < period; ++p) {
          Op op = body[p];
          op.reads[0].index.constant += k * deltas[p];
          op.block.constant += k * (below(8) == 0 ? 7 : deltas[0]);
          nodes.emplace_back(op);
        }
      }
    }
    const Program program = rolled(nodes);
    EXPECT_LE(count_ops(program), static_cast<int64_t>(nodes.size()));
  }
}

TEST(Roll, RepeatsInsideTakePart) {
  // Micro-batches of blocks: the inner run is rolled first, then the outer one.
  std::vector<Node> outer;
  int next_loop = 0;
  for (int64_t m = 0; m < 5; ++m) {
    std::vector<Node> inner;
    Op load = simple(OpKind::kLoad, {}, {value(0, m)});
    load.micro_batch.constant = m;
    for (int64_t i = 0; i < 9; ++i) {
      Op op = block_op(OpKind::kForward, i, {value(1, i)}, {value(1, i + 1)});
      op.micro_batch.constant = m;
      inner.emplace_back(op);
    }
    outer.emplace_back(load);
    for (Node& node : roll(inner, next_loop, "i")) outer.emplace_back(std::move(node));
  }
  Program before;
  before.num_loops = next_loop;
  before.body = outer;
  Program after;
  after.body = roll(outer, next_loop, "a");
  after.num_loops = next_loop;
  EXPECT_EQ(after.body.size(), 1u);
  EXPECT_EQ(count_ops(after), 2);
  EXPECT_EQ(unroll(after), unroll(before));
}

TEST(Partition, PartsCoverUnevenly) {
  const Partition partition{10, 4};
  EXPECT_EQ(partition.count(0), 4);
  EXPECT_EQ(partition.count(1), 4);
  EXPECT_EQ(partition.count(2), 2);
  EXPECT_EQ(partition.count(3), 0);
  EXPECT_EQ(partition.begin(7), 10);
}

TEST(Program, KindsHaveTheirOwnNames) {
  std::set<std::string> names;
  for (int kind = 0; kind <= static_cast<int>(OpKind::kCustom); ++kind) {
    names.insert(op_kind_name(static_cast<OpKind>(kind)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(OpKind::kCustom) + 1);
  EXPECT_FALSE(names.count("?"));
  EXPECT_TRUE(is_communication(OpKind::kAllGather));
  EXPECT_TRUE(is_communication(OpKind::kBarrier));
  EXPECT_FALSE(is_communication(OpKind::kCopy));
  EXPECT_FALSE(is_communication(OpKind::kFree));
}

}  // namespace
}  // namespace strait::program
