#include <gtest/gtest.h>

#include "strait/base/file.h"
#include "strait/program/operation_text.h"
#include "strait/program/program.h"
#include "strait/program/roll.h"
#include "tests/paths.h"
#include "tests/program/example_programs.h"
#include "tests/program/random_program.h"

namespace strait::program {
namespace {

Operand value(int array, int64_t index = 0) { return at(array, index); }

/// Two units of a model on two ranks, gathers one block ahead.
Program example() {
  Program program;
  program.name = "zero3";
  program.step_kind = "steady";
  program.ranks = 4;
  program.members = {0, 2};
  program.streams = {{"compute", 0}, {"world", 0}, {"world", 1}};
  program.groups = {{"inner", 2, 2, 0}};
  program.arrays = {
      {"w", 4, Dtype::kFloat32, {64, 32}, 0, Lifetime::kResident, Category::kWeights},
      {"W", 4, Dtype::kFloat32, {64, 64}, -1, Lifetime::kTransient, Category::kBuffers},
      {"x", 5, Dtype::kFloat32, {10, 10}, -1, Lifetime::kTransient, Category::kActivations},
      {"tokens", 1, Dtype::kInt32, {8, 8}, -1, Lifetime::kTransient, Category::kActivations},
      {"g", 1, Dtype::kFloat32, {64, 32}, 0, Lifetime::kCarryOut, Category::kGradients},
  };
  const auto add = [&](std::vector<Node>& nodes, OpKind kind, std::vector<Operand> reads,
                       std::vector<Operand> writes, int stream = 0) -> Op& {
    Op op = make_op(kind, std::move(reads), std::move(writes), stream);
    op.group = stream == 0 ? -1 : 0;
    nodes.emplace_back(op);
    return std::get<Op>(nodes.back());
  };
  std::vector<Node> nodes = {load_op({}, {value(3), value(2, 0)})};
  add(nodes, OpKind::kAllGather, {value(0, 0)}, {value(1, 0)}, 1);
  for (int64_t i = 0; i < 4; ++i) {
    if (i < 3) {
      add(nodes, OpKind::kAllGather, {value(0, i + 1)}, {value(1, i + 1)}, 1).waits = {
          value(1, i - 1)};
    }
    Op op = work_op(kForward, {i}, {value(2, i), value(1, i)}, {value(2, i + 1)});
    op.attributes[kSegments] = IntegerRange{0, 4};
    nodes.emplace_back(op);
    add(nodes, OpKind::kFree, {}, {value(1, i)});
    add(nodes, OpKind::kFree, {}, {value(2, i)});
  }
  Op& reduce = add(nodes, OpKind::kReduceScatter, {value(2, 4)}, {added(value(4))}, 2);
  reduce.codec = "int8";
  add(nodes, OpKind::kFree, {}, {value(2, 4)});
  add(nodes, OpKind::kSend, {value(4)}, {}, 2).peer.constant = 1;
  program.body = roll(nodes, program.num_loops, "i");
  return program;
}

TEST(Print, ReadsLikeTheExamples) {
  EXPECT_EQ(print(example()),
            R"(program zero3/steady   class: ranks 0, 2 of 4
  group inner      2 ranks, 2 apart
  streams compute, world.0, world.1
  resident   w[0..3]                  64 fp32 in parts of 32 over inner, weights
  carry out  g                        64 fp32 in parts of 32 over inner, gradients
  transient  W[0..3]                  64 fp32, buffers
  transient  x[0..4]                  10 fp32, activations
  transient  tokens                   8 i32, activations
  tokens, x[0] = load micro-batch 0()                                       on compute
  W[0] = all_gather(w[0])                                                   on world.0 among inner
  repeat i in 0..2 (3 times)   carried: W, x
    W[i+1] = all_gather(w[i+1])                                             on world.0 among inner)"
            R"(   waits W[i-1]
    x[i+1] = forward block i segments 0..3(x[i], W[i])                      on compute
    free W[i], x[i]
  x[4] = forward block 3 segments 0..3(x[3], W[3])                          on compute
  free W[3], x[3]
  g += reduce_scatter(x[4]) [int8]                                          on world.1 among inner
  free x[4]
  send(g) to 1                                                              on world.1 among inner
)");
}

TEST(Print, TheExampleInTheDocumentIsWhatIsPrinted) {
  const std::string page = read_file(test::in_source("docs/programs.md"));
  EXPECT_NE(page.find(print(split_program(2, 4, 2)[0])), std::string::npos);
}

TEST(Print, OneOperationWithAndWithoutLoopValues) {
  const Program program = example();
  const Repeat& repeat = std::get<Repeat>(program.body[2]);
  const Op& gather = std::get<Op>(repeat.body[0]);
  EXPECT_EQ(print_op(program, gather),
            "W[i+1] = all_gather(w[i+1]) on world.0 among inner   waits W[i-1]");
  std::vector<int64_t> loops(program.num_loops, 2);
  EXPECT_EQ(print_op(program, gather, &loops),
            "W[3] = all_gather(w[3]) on world.0 among inner   waits W[1]");
  EXPECT_EQ(print_op(program, std::get<Op>(repeat.body[2])), "free W[i]");
}

TEST(Print, OperationTextOfEveryInstanceIsItsPrintWithoutTheStream) {
  int64_t compared = 0;
  for (uint64_t seed = 0; seed < 200; ++seed)
    for (const Program& program : random_program(seed, 1 + static_cast<int64_t>(seed % 4)))
      for_each_instance(program, [&](const Op& op, const std::vector<int64_t>& loops) {
        const trace::OperationText text = operation_text(program, op);
        const std::string whole = print_op(program, op, &loops);
        const std::string own = text.str(text.pick(loops));
        EXPECT_TRUE(whole == own || whole.starts_with(own + " on ")) << whole << "\n" << own;
        ++compared;
      });
  EXPECT_GT(compared, 1000);
}

TEST(Print, OperationTextTakesTwoLoopsAndWrapsRound) {
  const Program program = example();
  Op op = touch_op({value(3)}, {value(2)});
  for (const Index& index : {Index{1, 0, 2, 1, 3, 0}, Index{1, 0, 2, 1, 3, 4},
                             Index{0, 0, 1, kNoLoop, 0, 2}, Index{0, kNoLoop, 0, 1, 1, 2}}) {
    op.writes.front().index = index;
    const trace::OperationText text = operation_text(program, op);
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 3; ++j) {
        const std::vector<int64_t> loops = {i, j};
        EXPECT_TRUE(print_op(program, op, &loops).starts_with(text.str(text.pick(loops)) + " on "))
            << print_op(program, op, &loops) << "\n"
            << text.str(text.pick(loops));
      }
  }
}

TEST(Print, SurvivesWhatIsOutOfRange) {
  Op op;
  op.kind = OpKind::kAllReduce;
  op.reads = {at(17, 3, 5, -2)};
  op.stream = 9;
  op.group = 4;
  EXPECT_EQ(print_op(Program{}, op), "all_reduce(array17[-2*loop5+3]) on stream9");
}

TEST(Print, WhatAKernelDoesToItsOperands) {
  const Program program = example();
  EXPECT_EQ(print_op(program, touch_op({value(3)}, {value(4), value(2, 1)})),
            "g, x[1] = touch(tokens) on compute");
  EXPECT_EQ(print_op(program, touch_op({}, {added(value(4))})), "g += touch() on compute");
  EXPECT_EQ(print_op(program, touch_op({}, {updated(value(4))})), "g <- touch() on compute");
  EXPECT_EQ(print_op(program, touch_op({}, {value(2, 1), added(value(4)), updated(value(3))})),
            "x[1], +g, ~tokens = touch() on compute");
}

TEST(Print, Attributes) {
  const Program program = example();
  EXPECT_EQ(print_op(program, call_op("me", {}, {value(4)})), "g = call name me() on compute");
  Op op = work_op(kBackward, {7}, {}, {});
  EXPECT_EQ(print_op(program, op), "backward block 7() on compute") << "of no segments";
  op.attributes[kSegments] = IntegerRange{2, 3};
  EXPECT_EQ(print_op(program, op), "backward block 7 segments 2..2() on compute");
}

TEST(Print, IndicesOfTwoLoopsAndCounters) {
  const Program program = example();  // its loop 0 is i
  const auto printed = [&](const Index& index) {
    Op op = touch_op({value(0)}, {});
    op.reads[0].index = index;
    return print_op(program, op);
  };
  EXPECT_EQ(printed({1, 0, 2, 3, -1}), "touch(w[2*i+1-loop3]) on compute");
  EXPECT_EQ(printed({0, 0, 1, 3, 4}), "touch(w[i+4*loop3]) on compute");
  EXPECT_EQ(printed({1, kStepCounter, 1, kNoLoop, 0, 2}), "touch(w[(step+1)%2]) on compute");
  EXPECT_EQ(printed({0, kRoundCounter, 1, kNoLoop, 0, 3}), "touch(w[(round)%3]) on compute");
}

TEST(Print, MembersInRuns) {
  Program program = example();
  const auto first_line = [&](std::vector<int64_t> members) {
    program.members = std::move(members);
    const std::string text = print(program);
    return text.substr(0, text.find('\n'));
  };
  EXPECT_EQ(first_line({}), "program zero3/steady   class: every rank of 4");
  EXPECT_EQ(first_line({3}), "program zero3/steady   class: rank 3 of 4");
  EXPECT_EQ(first_line({0, 1, 4, 6, 8, 9, 10}),
            "program zero3/steady   class: ranks 0, 1, 4..8 by 2, 9, 10 of 4");
}

}  // namespace
}  // namespace strait::program
