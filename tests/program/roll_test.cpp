#include "strait/program/roll.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "strait/base/random.h"
#include "strait/program/indices.h"
#include "tests/program/test_kernels.h"

namespace strait::program {
namespace {

Operand value(int array, int64_t index) { return at(array, index); }

Op block_op(const Kernel& kernel, int64_t block, std::vector<Operand> reads,
            std::vector<Operand> writes) {
  return work_op(kernel, {block}, std::move(reads), std::move(writes));
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
    Op op = make_op(OpKind::kAllGather, {value(kShard, i)}, {value(kGathered, i)}, 1);
    op.group = 0;
    nodes.emplace_back(op);
  };
  const auto free_value = [&](int array, int64_t i) {
    nodes.emplace_back(make_op(OpKind::kFree, {value(array, i)}, {}));
  };
  for (int64_t i = 0; i < std::min(prefetch, blocks); ++i) gather(i);
  for (int64_t i = 0; i < blocks; ++i) {
    if (i + prefetch < blocks) gather(i + prefetch);
    nodes.emplace_back(block_op(kForward, i, {value(kActivation, i), value(kGathered, i)},
                                {value(kActivation, i + 1)}));
    free_value(kGathered, i);
    if (i % every != 0) free_value(kActivation, i);
  }
  for (int64_t end = blocks; end > 0; end -= every) {
    const int64_t begin = std::max<int64_t>(end - every, 0);
    for (int64_t i = begin; i < end; ++i) {
      gather(i);
      nodes.emplace_back(block_op(kForward, i, {value(kActivation, i), value(kGathered, i)},
                                  {value(kActivation, i + 1), value(kSaved, i)}));
    }
    for (int64_t i = end - 1; i >= begin; --i) {
      nodes.emplace_back(block_op(kBackward, i,
                                  {value(kFlow, i + 1), value(kSaved, i), value(kGathered, i)},
                                  {value(kFlow, i), value(kGradient, i)}));
      free_value(kSaved, i);
      free_value(kGathered, i);
      Op reduce = make_op(OpKind::kReduceScatter, {value(kGradient, i)},
                          {added(value(kGradientShard, i))}, 2);
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
    nodes.emplace_back(make_op(OpKind::kAllGather, {value(0, i - 1)}, {value(1, i - 1)}, 1));
    nodes.emplace_back(block_op(kBackward, i, {value(1, i)}, {value(2, 3 * i)}));
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
  EXPECT_EQ(attribute<Index>(backward, kBlock), (Index{0, repeat.loop, 1}));
  EXPECT_EQ(backward.writes[0].index, (Index{0, repeat.loop, 3}));
  EXPECT_EQ(repeat.carried, std::vector<int>{1});
}

TEST(Roll, LoopVariableCountsWhenBlocksDoNotDivide) {
  std::vector<Node> nodes;
  for (int64_t k = 0; k < 4; ++k) {
    nodes.emplace_back(block_op(kForward, 5 + 2 * k, {value(0, 3 * k)}, {value(1, 0)}));
    nodes.emplace_back(make_op(OpKind::kFree, {value(1, 0)}, {}));
  }
  const Program program = rolled(nodes);
  const Repeat& repeat = std::get<Repeat>(program.body.at(0));
  EXPECT_EQ(repeat.first, 0);
  EXPECT_EQ(repeat.step, 1);
  EXPECT_EQ(attribute<Index>(std::get<Op>(repeat.body[0]), kBlock), (Index{5, repeat.loop, 2}));
}

/// `nodes` inside the body of a repeat with loop 7 that runs 3 times, rolled or not.
Program inside(std::vector<Node> nodes) {
  Repeat outer;
  outer.loop = 7;
  outer.count = 3;
  outer.body = std::move(nodes);
  Program program;
  program.num_loops = 9;
  program.body = {outer};
  return program;
}

/// Six blocks inside loop 7, with the micro-batch that `index` says.
std::vector<Node> six_blocks(const std::function<Index(int64_t)>& index) {
  std::vector<Node> nodes;
  for (int64_t i = 0; i < 6; ++i) {
    Op op = block_op(kForward, i, {value(0, i)}, {value(0, i + 1)});
    op.attributes[kMicroBatch] = index(i);
    nodes.emplace_back(op);
  }
  return nodes;
}

/// The micro-batch of the one op that six blocks are rolled into, in loop 8.
Index rolled_micro_batch(const std::vector<Node>& nodes) {
  int next_loop = 8;
  const std::vector<Node> result = roll(nodes, next_loop, "i");
  EXPECT_EQ(unroll(inside(result)), unroll(inside(nodes)));
  EXPECT_EQ(result.size(), 1u);
  EXPECT_EQ(next_loop, 9);
  const Repeat& repeat = std::get<Repeat>(result.at(0));
  EXPECT_EQ(repeat.loop, 8);
  return attribute<Index>(std::get<Op>(repeat.body.at(0)), kMicroBatch);
}

bool stays(const std::vector<Node>& nodes) {
  int next_loop = 8;
  return roll(nodes, next_loop, "i") == nodes;
}

TEST(Roll, IndicesOfOneEnclosingLoopStayOrTakeTheNewOneAsTheirSecond) {
  EXPECT_EQ(rolled_micro_batch(six_blocks([](int64_t) {
              return Index{0, 7, 1};
            })),
            (Index{0, 7, 1}));
  EXPECT_EQ(rolled_micro_batch(six_blocks([](int64_t i) {
              return Index{2 + 3 * i, 7, 5};
            })),
            (Index{2, 7, 5, 8, 3}));
  const std::vector<Node> uneven = six_blocks([](int64_t i) { return Index{i * i, 7, 1}; });
  int next_loop = 8;
  const std::vector<Node> result = roll(uneven, next_loop, "i");
  EXPECT_GE(count_ops(inside(result)), 3) << "no six times the same";
  EXPECT_EQ(unroll(inside(result)), unroll(inside(uneven)));
  EXPECT_TRUE(stays(six_blocks([](int64_t i) { return Index{0, 7, i}; }))) << "other scales";
  EXPECT_TRUE(stays(six_blocks([](int64_t i) {
    return Index{0, static_cast<int>(i), 1};
  }))) << "other loops";
}

TEST(Roll, IndicesOfTwoLoopsStayAndMustBeEqual) {
  const Index two{1, 7, 1, 6, 4};
  EXPECT_EQ(rolled_micro_batch(six_blocks([&](int64_t) { return two; })), two);
  EXPECT_TRUE(stays(six_blocks([](int64_t i) { return Index{i, 7, 1, 6, 4}; })));
  EXPECT_TRUE(stays(six_blocks([](int64_t i) { return Index{1, 7, 1, 6, i}; })));
  const Index cyclic{1, 7, 1, kNoLoop, 0, 2};
  EXPECT_EQ(rolled_micro_batch(six_blocks([&](int64_t) { return cyclic; })), cyclic);
  EXPECT_TRUE(stays(six_blocks([](int64_t i) { return Index{1, 7, 1, kNoLoop, 0, 2 + i}; })))
      << "other modulos";
  const Index counted{0, kStepCounter, 1, kNoLoop, 0, 2};
  const std::vector<Node> steps = six_blocks([&](int64_t) { return counted; });
  int next_loop = 8;
  const std::vector<Node> result = roll(steps, next_loop, "i");
  ASSERT_EQ(result.size(), 1u);
  const Op& op = std::get<Op>(std::get<Repeat>(result[0]).body.at(0));
  EXPECT_EQ(attribute<Index>(op, kMicroBatch), counted);
}

TEST(Roll, IndicesWithAModuloAdvance) {
  // Slots of micro-batches: what a loop over blocks adds stays inside the modulo.
  EXPECT_EQ(
      rolled_micro_batch(six_blocks([](int64_t i) { return Index{i, 7, 6, kNoLoop, 0, 12}; })),
      (Index{0, 7, 6, 8, 1, 12}));
  EXPECT_EQ(
      rolled_micro_batch(six_blocks([](int64_t i) { return Index{i, kNoLoop, 0, kNoLoop, 0, 9}; })),
      (Index{0, 8, 1, kNoLoop, 0, 9}));
}

TEST(Roll, IndicesOfTwoLoopsSurvive) {
  // Micro-batches of blocks that use a value of their own each: both loops end up in its index.
  constexpr int64_t kMicroBatches = 4, kBlocks = 9;
  std::vector<Node> flat, outer;
  int next_loop = 0;
  for (int64_t m = 0; m < kMicroBatches; ++m) {
    std::vector<Node> inner;
    for (int64_t i = kBlocks - 1; i >= 0; --i)
      inner.emplace_back(
          block_op(kBackward, i, {value(0, kBlocks * m + i)}, {value(1, 2 * i - 3 * m + 20)}));
    flat.insert(flat.end(), inner.begin(), inner.end());
    for (Node& node : roll(inner, next_loop, "i")) outer.emplace_back(std::move(node));
  }
  Program program;
  program.body = roll(outer, next_loop, "a");
  program.num_loops = next_loop;
  EXPECT_EQ(unroll(program).body, flat);
  EXPECT_EQ(count_ops(program), 1);
  const Repeat& batches = std::get<Repeat>(program.body.at(0));
  const Repeat& blocks = std::get<Repeat>(batches.body.at(0));
  const Op& op = std::get<Op>(blocks.body.at(0));
  EXPECT_EQ(op.reads[0].index, (Index{0, blocks.loop, 1, batches.loop, kBlocks}));
  EXPECT_EQ(op.writes[0].index, (Index{20, blocks.loop, 2, batches.loop, -3}));
}

TEST(Roll, EveryFieldMustBeEqual) {
  static const Kernel other = kForward;  // an equal entry that is another kernel
  const auto differs = [](auto change) {
    std::vector<Node> nodes;
    for (int64_t i = 0; i < 4; ++i) {
      nodes.emplace_back(block_op(kForward, i, {value(0, i)}, {value(0, i + 1)}));
      if (i % 2 == 1) change(std::get<Op>(nodes.back()), i);
    }
    for (size_t i = 1; i < nodes.size(); i += 2) change(std::get<Op>(nodes[i]), 100 * i * i * i);
    int next_loop = 0;
    return roll(nodes, next_loop, "i") == nodes;
  };
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.attributes[kFlops] = static_cast<double>(i); }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.attributes[kWorkspace] = i; }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.attributes[kSegments] = IntegerRange{i, 0}; }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.attributes[kSegments] = IntegerRange{0, i}; }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.attributes.emplace_back(std::to_string(i)); }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.attributes.resize(i == 100 ? 0 : 2); }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.kernel = i == 100 ? &other : &kForward; }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.partition.elements = i; }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.partition.grain = i; }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.codec = std::to_string(i); }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.piece_bytes = i; }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.metadata_bytes = i; }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.stream = static_cast<int>(i); }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.group = static_cast<int>(i); }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.reads[0].array = static_cast<int>(i); }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.reads[0].slot = static_cast<int>(i); }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) {
    if (i == 100) op.writes[0].access = Access::kAdd;
  }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.waits = {value(static_cast<int>(i), 0)}; }));
  EXPECT_TRUE(differs([](Op& op, int64_t i) { op.attributes[kBlock] = Index{i, 3, i}; }));
}

/// A few runs of random bodies one after another, some of which do not advance evenly.
std::vector<Node> random_nodes(uint64_t seed) {
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
      const bool computes = below(2) != 0;
      const int64_t block = below(3);
      const Operand operand = value(static_cast<int>(below(2)), below(3));
      body.push_back(computes ? block_op(kForward, block, {operand}, {})
                              : make_op(OpKind::kFree, {operand}, {}));
      deltas.push_back(below(5) - 2);
    }
    for (int64_t k = 0; k < count; ++k) {
      for (int64_t p = 0; p < period; ++p) {
        Op op = body[p];
        op.reads[0].index.constant += k * deltas[p];
        const int64_t blocks = k * (below(8) == 0 ? 7 : deltas[0]);
        if (op.kernel != nullptr) std::get<Index>(op.attributes[kBlock]).constant += blocks;
        nodes.emplace_back(op);
      }
    }
  }
  return nodes;
}

/// The node with its constants taken out, and the constants.
std::pair<Op, std::vector<int64_t>> taken_apart(const Node& node) {
  std::pair<Op, std::vector<int64_t>> parts = {std::get<Op>(node), {}};
  visit_indices(parts.first, [&](Index& index) {
    parts.second.push_back(index.constant);
    index.constant = 0;
  });
  return parts;
}

/// True when `later` goes on from `earlier` as `earlier` from `first`.
bool goes_on(const Node& first, const Node& earlier, const Node& later) {
  const auto [a, from] = taken_apart(first);
  const auto [b, through] = taken_apart(earlier);
  const auto [c, to] = taken_apart(later);
  for (size_t k = 0; a == c && k < to.size(); ++k)
    if (to[k] - through[k] != through[k] - from[k]) return false;
  return a == c;
}

/// True when `period` nodes from `begin` on repeat `count` times.
bool one_repeat(const std::vector<Node>& nodes, int64_t begin, int64_t period, int64_t count) {
  for (int64_t i = begin; i < begin + period; ++i) {
    if (taken_apart(nodes[i]).first != taken_apart(nodes[i + period]).first) return false;
    for (int64_t k = 2; k < count; ++k)
      if (!goes_on(nodes[i + (k - 2) * period], nodes[i + (k - 1) * period], nodes[i + k * period]))
        return false;
  }
  return true;
}

/// The fewest operations, a repeat counted as one more: every period and every count is tried at
/// every node.
int64_t fewest_operations(const std::vector<Node>& nodes) {
  const auto size = static_cast<int64_t>(nodes.size());
  std::vector<int64_t> fewest(nodes.size() + 1, 0);
  for (int64_t i = size - 1; i >= 0; --i) {
    fewest[i] = fewest[i + 1] + 1;
    for (int64_t period = 1; i + 2 * period <= size; ++period)
      for (int64_t count = 2; i + count * period <= size; ++count)
        if (one_repeat(nodes, i, period, count))
          fewest[i] = std::min(fewest[i], fewest[i + count * period] + period + 1);
  }
  return fewest[0];
}

TEST(Roll, RandomSequencesSurviveInTheFewestOperations) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const std::vector<Node> nodes = random_nodes(seed);
    const Program program = rolled(nodes);
    const auto is_repeat = [](const Node& node) { return std::holds_alternative<Repeat>(node); };
    const int64_t repeats = std::count_if(program.body.begin(), program.body.end(), is_repeat);
    EXPECT_EQ(count_ops(program) + repeats, fewest_operations(nodes)) << seed;
  }
}

TEST(Roll, RepeatsInsideTakePart) {
  // Micro-batches of blocks: the inner run is rolled first, then the outer one.
  std::vector<Node> outer;
  int next_loop = 0;
  for (int64_t m = 0; m < 5; ++m) {
    std::vector<Node> inner;
    const Op load = load_op({m}, {value(0, m)});
    for (int64_t i = 0; i < 9; ++i) {
      Op op = block_op(kForward, i, {value(1, i)}, {value(1, i + 1)});
      op.attributes[kMicroBatch] = Index{m};
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
  for (int kind = 0; kind <= static_cast<int>(OpKind::kFree); ++kind) {
    names.insert(op_kind_name(static_cast<OpKind>(kind)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(OpKind::kFree) + 1);
  EXPECT_FALSE(names.count("?"));
  EXPECT_TRUE(is_communication(OpKind::kAllGather));
  EXPECT_TRUE(is_communication(OpKind::kBarrier));
  EXPECT_FALSE(is_communication(OpKind::kCopy));
  EXPECT_FALSE(is_communication(OpKind::kFree));
}

}  // namespace
}  // namespace strait::program
