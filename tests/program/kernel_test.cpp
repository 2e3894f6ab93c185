// Kernels as tables: the verifier holds every op to the entry of its kernel; costs come from there
// alone.
#include "strait/program/kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/verify/verify.h"
#include "tests/program/program_builder.h"

namespace strait::program {
namespace {

using testing::HasSubstr;

enum MixOperand : int { kSource, kScale, kTarget, kExtras };
enum MixAttribute : int { kMixBlock, kMixCount, kMixFactor, kMixRange, kMixName };

std::vector<KernelOperand> mix_operands() {
  return {{"source"},
          {"scale", kReads, Count::kOptional, false},
          {"target", kUpdates | kAdds},
          {"extras", kWrites, Count::kAny}};
}

std::vector<AttributeInfo> mix_attributes() {
  return {{"block", AttributeType::kIndex, true},
          {"count", AttributeType::kInteger},
          {"factor", AttributeType::kNumber},
          {"range", AttributeType::kRange},
          {"name", AttributeType::kText}};
}

/// `count` bytes; so a test can say less than its operands have.
KernelCost counted_cost(const Program&, const Op& op, int64_t) {
  KernelCost cost;
  cost.bytes = static_cast<double>(attribute<int64_t>(op, kMixCount));
  return cost;
}

const Kernel kMix{"mix", Bound::kMemory, mix_operands(), mix_attributes()};
const Kernel kCounted{"counted", Bound::kMemory, mix_operands(), mix_attributes(), counted_cost};

/// Sizes in elements of fp32: source 8 in parts over two ranks, scale 1, target 8, two extras of 3.
struct Example {
  ProgramBuilder builder{2};
  int source = builder.array("source", 1, Lifetime::kResident, 8, 0);
  int scale = builder.array("scale", 1, Lifetime::kResident, 1);
  int target = builder.array("target", 1, Lifetime::kResident, 8);
  int extras = builder.array("extras", 2, Lifetime::kResident, 3);

  Op mix(const Kernel& kernel = kMix) const {
    Op op;
    op.kind = OpKind::kKernel;
    op.kernel = &kernel;
    op.reads = {as(at(source), Access::kRead, kSource), as(at(scale), Access::kRead, kScale)};
    op.writes = {as(at(target), Access::kUpdate, kTarget),
                 as(at(extras, 0), Access::kWrite, kExtras),
                 as(at(extras, 1), Access::kWrite, kExtras)};
    op.attributes = {Index{3}, int64_t{1000}, 0.5, IntegerRange{0, 2}, std::string("me")};
    return op;
  }

  Program program(const Op& op) {
    builder.add(op);
    return builder.take();
  }
};

/// "" or the first problem of a program of the one op.
std::string problem_of(const Op& op) {
  Example example;
  const std::vector<Problem> problems = verify({example.program(op)});
  return problems.empty() ? "" : problems[0].kind + ": " + problems[0].message;
}

template <class Change>
std::string problem_with(const Change& change, const Kernel& kernel = kMix) {
  Op op = Example().mix(kernel);
  change(op);
  return problem_of(op);
}

TEST(Kernel, WhatTheTableAllowsIsLegal) {
  EXPECT_EQ(problem_with([](Op&) {}), "");
  EXPECT_EQ(problem_with([](Op& op) { op.writes[0].access = Access::kAdd; }), "");
  EXPECT_EQ(problem_with([](Op& op) { op.reads.pop_back(); }), "") << "an optional operand";
  EXPECT_EQ(problem_with([](Op& op) { op.writes.resize(1); }), "") << "any number";
}

TEST(Kernel, AnOpNeedsAKernel) {
  EXPECT_THAT(problem_with([](Op& op) { op.kernel = nullptr; }),
              HasSubstr("malformed: test/steady, rank class 0: "));
  EXPECT_THAT(problem_with([](Op& op) { op.kernel = nullptr; }), HasSubstr("calls no kernel"));
}

TEST(Kernel, UndeclaredOperandsAreRefused) {
  EXPECT_THAT(problem_with([](Op& op) { op.reads[0].slot = 4; }),
              HasSubstr("gives source as operand 4 of mix, which has 4"));
  EXPECT_THAT(problem_with([](Op& op) { op.writes[0].slot = -1; }),
              HasSubstr("gives target as operand -1 of mix, which has 4"));
}

TEST(Kernel, AccessesThatTheTableDoesNotAllowAreRefused) {
  const auto words = [](const char* access, const char* array, const char* operand) {
    return HasSubstr(std::string("declares ") + access + " of " + array + " as " + operand +
                     ", which its table entry does not allow");
  };
  EXPECT_THAT(problem_with([](Op& op) { op.writes[0].access = Access::kWrite; }),
              words("write", "target", "target"));
  EXPECT_THAT(problem_with([](Op& op) { op.writes[1].access = Access::kUpdate; }),
              words("update", "extras", "extras"));
  EXPECT_THAT(problem_with([](Op& op) { op.reads[1].slot = kTarget; }),
              words("read", "scale", "target"));
  EXPECT_THAT(problem_with([](Op& op) { op.reads[0].slot = kExtras; }),
              words("read", "source", "extras"));
  // What a list says of its operands and what they say of themselves must agree.
  EXPECT_THAT(problem_with([](Op& op) {
                op.reads.push_back(op.writes[2]);
                op.writes.pop_back();
              }),
              words("write", "extras", "extras"));
  EXPECT_THAT(problem_with([](Op& op) {
                op.writes.push_back(op.reads[1]);
                op.reads.pop_back();
              }),
              words("read", "scale", "scale"));
}

TEST(Kernel, AnUpdateIsNotARead) {
  EXPECT_THAT(problem_with([](Op& op) { op.reads[0].array = op.writes[0].array; }),
              HasSubstr("concurrent-write"));
}

TEST(Kernel, NumbersOfOperandsAreThoseOfTheTable) {
  EXPECT_THAT(problem_with([](Op& op) { op.reads.erase(op.reads.begin()); }),
              HasSubstr("has 0 values for source of mix"));
  EXPECT_THAT(problem_with([](Op& op) { op.writes.erase(op.writes.begin()); }),
              HasSubstr("has 0 values for target of mix"));
  EXPECT_THAT(problem_with([](Op& op) { op.reads.push_back(op.reads[0]); }),
              HasSubstr("has 2 values for source of mix"));
  EXPECT_THAT(problem_with([](Op& op) { op.reads.push_back(op.reads[1]); }),
              HasSubstr("has 2 values for scale of mix"));
  static const Kernel without = [] {
    Kernel kernel = kMix;
    kernel.operands[kScale].count = Count::kNone;
    return kernel;
  }();
  EXPECT_THAT(problem_with([](Op&) {}, without), HasSubstr("has 1 values for scale of mix"));
}

TEST(Kernel, AttributesHaveTheTypesOfTheTable) {
  const auto refused = HasSubstr("has other attributes than the 5 of mix");
  EXPECT_THAT(problem_with([](Op& op) { op.attributes.pop_back(); }), refused);
  EXPECT_THAT(problem_with([](Op& op) { op.attributes.emplace_back(1.0); }), refused);
  EXPECT_THAT(problem_with([](Op& op) { op.attributes[kMixBlock] = int64_t{3}; }), refused);
  EXPECT_THAT(problem_with([](Op& op) { op.attributes[kMixCount] = 3.0; }), refused);
  EXPECT_THAT(problem_with([](Op& op) { op.attributes[kMixFactor] = int64_t{3}; }), refused);
  EXPECT_THAT(problem_with([](Op& op) { op.attributes[kMixRange] = Index{3}; }), refused);
  EXPECT_THAT(problem_with([](Op& op) { op.attributes[kMixName] = IntegerRange{}; }), refused);
}

TEST(Kernel, IndexAttributesUseLoopsThatEncloseTheOp) {
  EXPECT_THAT(problem_with([](Op& op) {
                op.attributes[kMixBlock] = Index{0, 2, 1};
              }),
              HasSubstr("uses a loop variable outside its loop"));
  EXPECT_EQ(problem_with([](Op& op) { op.attributes[kMixBlock] = Index{0, kStepCounter, 1}; }), "");
}

/// Source and scale are read, target is read and written, two extras are written.
constexpr double kTouchedBytes = 4 * (4 + 2 * 8 + 2 * 3);  // scale is not whole

TEST(Kernel, ACostBelowTheSizesOfTheOperandsIsRefused) {
  const auto with = [](int64_t bytes) {
    return problem_with([&](Op& op) { op.attributes[kMixCount] = bytes; }, kCounted);
  };
  const int64_t enough = static_cast<int64_t>(kTouchedBytes);
  EXPECT_EQ(with(enough), "");
  EXPECT_THAT(with(enough - 1), HasSubstr("is said to touch 103 bytes, but its operands have 104"));
}

TEST(Kernel, CostsComeFromTheTable) {
  const auto cost = [](const Op& op) {
    Example example;
    return cost_of(example.program(op), op, 0);
  };
  EXPECT_EQ(cost(Example().mix()).bytes, kTouchedBytes);
  EXPECT_EQ(cost(Example().mix()).flops, 0);
  EXPECT_EQ(cost(Example().mix(kCounted)).bytes, 1000);
  Op work = work_op(kForward, {0}, {at(2)}, {});
  work.attributes[kFlops] = 7.0;
  work.attributes[kBytes] = 100.0;
  work.attributes[kWorkspace] = int64_t{5};
  EXPECT_EQ(cost(work).flops, 7);
  EXPECT_EQ(cost(work).bytes, 100 + 4 * 8);
  EXPECT_EQ(cost(work).workspace_bytes, 5);
  EXPECT_EQ(cost(make_op(OpKind::kCopy, {at(2)}, {at(2)})).bytes, 0) << "no kernel";
}

}  // namespace
}  // namespace strait::program
