// Joined values: several that are written, moved and awaited one by one and read as one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "strait/program/lifetime.h"
#include "strait/program/memory.h"
#include "strait/program/shares.h"
#include "strait/program/transfer.h"
#include "strait/verify/verify.h"
#include "tests/program/program_builder.h"

namespace strait::program {
namespace {

using testing::HasSubstr;

const Kernel kReadsOne{"reads_one",
                       Bound::kMemory,
                       {{"sum", kReads, Count::kOptional}, {"made", kWrites, Count::kOptional}},
                       {}};

/// Takes one of joined values.
const Kernel kMakesPart{"makes_part", Bound::kMemory, {{"part", kWrites, Count::kOne, false}}, {}};

Op makes_part(const Operand& part) {
  Op op = make_op(OpKind::kKernel, {}, {part});
  op.kernel = &kMakesPart;
  return op;
}

Op reads_one(std::vector<Operand> reads) {
  Op op = make_op(OpKind::kKernel, std::move(reads), {});
  op.kernel = &kReadsOne;
  return op;
}

/// Parts of 4, 4 and 2 elements of a vector of 10: each is written and summed, then all are read as
/// one.
Program chunked(
    const std::function<void(ValueArray&)>& change = [](ValueArray&) {},
    std::vector<Operand> read = {at(0, 0), at(0, 1), at(0, 2)}) {
  ProgramBuilder builder(2);
  const int sum = builder.array("sum", 3, Lifetime::kTransient, 10);
  for (int64_t part = 0; part < 3; ++part) {
    builder.add(makes_part(at(sum, part)));
    builder.add(OpKind::kAllReduce, {at(sum, part)}, {at(sum, part)}, 1);
  }
  builder.add(reads_one(std::move(read)));
  for (int64_t part = 0; part < 3; ++part) builder.free(at(sum, part));
  Program program = builder.take();
  program.arrays[0].joined = true;
  program.arrays[0].partition = {10, 4};
  change(program.arrays[0]);
  return program;
}

std::string problems(const Program& program) {
  std::string text;
  for (const Problem& problem : verify(std::vector<Program>{program}))
    text += problem.kind + ": " + problem.message + "\n";
  return text;
}

TEST(JoinedValues, AreOneOperandOfAKernel) {
  EXPECT_EQ(problems(chunked()), "");
  // In order and without a gap.
  EXPECT_THAT(problems(chunked([](ValueArray&) {}, {at(0, 0), at(0, 2), at(0, 1)})),
              HasSubstr("has 3 values for sum of reads_one"));
  EXPECT_THAT(problems(chunked([](ValueArray&) {}, {at(0, 0), at(0, 2)})),
              HasSubstr("has 2 values for sum of reads_one"));
  EXPECT_THAT(problems(chunked([](ValueArray&) {}, {at(0, 0), at(0, 1)})),
              HasSubstr("has 2 of the 3 joined values sum"));
  EXPECT_THAT(problems(chunked([](ValueArray& array) {
                array.joined = false;
                array.partition = {10, 10};
              })),
              HasSubstr("has 3 values for sum of reads_one"));
}

TEST(JoinedValues, AreThePartsOfTheirPartition) {
  for (const auto& change : std::vector<std::function<void(ValueArray&)>>{
           [](ValueArray& array) {
             array.partition = {10, 5};
           },
           [](ValueArray& array) {
             array.partition = {10, 3};
           },
           [](ValueArray& array) {
             array.partition = {10, 0};
           },
           [](ValueArray& array) { array.lifetime = Lifetime::kResident; },
           [](ValueArray& array) { array.group = 0; }})
    EXPECT_THAT(problems(chunked(change)), HasSubstr("joined values sum are not"));
}

/// Shares of 5 elements of two ranks, cut by 3: the own one is made, the other one comes by shifts.
Program shared(const std::vector<int64_t>& read, const Partition& partition = {10, 3},
               int64_t skipped = 0) {
  ProgramBuilder builder(2);
  const int rows = builder.array("rows", 4, Lifetime::kTransient, 10);
  for (int64_t part = 0; part < 2; ++part) builder.add(makes_part(at(rows, part)));
  for (int64_t part = 0; part < 2; ++part)
    builder.add(OpKind::kShift, {at(rows, part)}, {at(rows, part + 2)}, 1).peer = {skipped};
  std::vector<Operand> operands;
  for (const int64_t number : read) operands.push_back(at(rows, number));
  builder.add(reads_one(operands));
  for (int64_t part = 0; part < 4; ++part) builder.free(at(rows, part));
  Program program = builder.take();
  program.arrays[0].joined = true;
  program.arrays[0].group = 0;
  program.arrays[0].partition = partition;
  return program;
}

TEST(JoinedValues, OfAGroupAreItsSharesOrTheOwnOne) {
  EXPECT_EQ(problems(shared({0, 1, 2, 3})), "");
  EXPECT_EQ(problems(shared({0, 1})), "");
  EXPECT_THAT(problems(shared({0})), HasSubstr("has 1 of the 4 joined values rows"));
  EXPECT_THAT(problems(shared({2, 3})), HasSubstr("has 2 of the 4 joined values rows"));
  for (const Partition& partition : {Partition{10, 5}, {10, 2}, {9, 3}, {10, 0}})
    EXPECT_THAT(problems(shared({0, 1}, partition)), HasSubstr("joined values rows are not"));
  EXPECT_THAT(problems(shared({0, 1}, {10, 3}, 1)),
              HasSubstr("skips other than 0 to 0 positions of group world"));
}

/// Numbers count from a rank's own share on; together they are the same everywhere.
TEST(JoinedValues, OfAGroupLieInTheOrderOfRanks) {
  const Program program = shared({0, 1});
  const ValueArray& rows = program.arrays[0];
  const std::vector<std::vector<int64_t>> begins = {{0, 3, 5, 8}, {5, 8, 0, 3}};
  for (int64_t rank = 0; rank < 2; ++rank)
    for (int64_t number = 0; number < 4; ++number) {
      EXPECT_EQ(joined_begin(program, rows, rank, number),
                begins[static_cast<size_t>(rank)][static_cast<size_t>(number)]);
      EXPECT_EQ(value_elements(program, rows, rank, number), number % 2 == 0 ? 3 : 2);
    }
  EXPECT_EQ(value_elements(program, rows, 1), 10);
  EXPECT_EQ(peak_memory(program, 1).total(), 40);
}

TEST(JoinedValues, AreNamedByConstants) {
  Program program = chunked();
  Repeat repeat{"k", program.num_loops++, 0, 1, 3, {}, {}};
  repeat.body = {makes_part(at(0, 0, repeat.loop))};
  program.body.insert(program.body.begin(), repeat);
  EXPECT_THAT(problems(program), HasSubstr("names one of the joined values sum by a loop"));
}

TEST(JoinedValues, MoveTheirOwnElements) {
  const Program program = chunked();
  std::vector<int64_t> moved;
  for_each_op(program.body, [&](const Op& op) {
    if (op.kind == OpKind::kAllReduce) moved.push_back(transfer_split(program, op, 1).elements());
  });
  EXPECT_EQ(moved, (std::vector<int64_t>{4, 4, 2}));
}

/// The product of a part waits for no sum of an earlier one; who reads all waits for the last.
TEST(JoinedValues, AreAwaitedOneByOne) {
  const Program program = chunked();
  LifetimeTracker tracker(program);
  std::vector<size_t> waits;
  for_each_instance(program, [&](const Op& op, const Loops& loops) {
    const StepPlan& plan = tracker.next(op, loops);
    if (op.kind == OpKind::kKernel) waits.push_back(plan.wait_for.size());
  });
  EXPECT_EQ(waits, (std::vector<size_t>{0, 0, 0, 1}));
}

TEST(JoinedValues, TakeTheirMemoryTogether) {
  EXPECT_EQ(peak_memory(chunked(), 0).total(), 40);
  // From the first one that is written to the last one that is freed.
  Program early = chunked();
  early.arrays.push_back({"other", 1, Dtype::kFloat32, {5, 5}});
  const auto at_body = [&](std::ptrdiff_t place) { return early.body.begin() + place; };
  early.body.insert(at_body(1), make_op(OpKind::kFree, {}, {at(1)}));
  early.body.insert(at_body(1), touch_op({}, {at(1)}));
  EXPECT_EQ(problems(early), "");
  EXPECT_EQ(peak_memory(early, 0).total(), 60);
}

TEST(JoinedValues, ArePrintedAsParts) {
  EXPECT_THAT(print(chunked()),
              HasSubstr("sum[0..2]                10 fp32 in all, joined parts of 4"));
}

}  // namespace
}  // namespace strait::program
