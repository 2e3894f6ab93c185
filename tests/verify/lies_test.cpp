// The seven lies that a set of programs can tell, each told to the verifier by one change of one
// honest set, and refused by name. The five that a kernel can tell while it runs are in
// tests/runtime/guard_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/verify/verify.h"
#include "tests/program/program_builder.h"

namespace strait::program {
namespace {

using ::testing::HasSubstr;

/// Bytes that the work of a test says it touches.
KernelCost said_cost(const Program&, const Op& op, int64_t) {
  KernelCost cost;
  cost.bytes = attribute<double>(op, 0);
  return cost;
}
const Kernel kSay{
    "say", Bound::kMemory, any_values(), {{"bytes", AttributeType::kNumber}}, said_cost};

Op say(double bytes, std::vector<Operand> reads, std::vector<Operand> writes) {
  Op op = make_op(OpKind::kKernel, std::move(reads), std::move(writes));
  op.kernel = &kSay;
  op.attributes = {bytes};
  return op;
}

/// Numbers of the arrays and places in the body, the same in all programs below.
enum Array : int { kSnap, kMean, kPart, kMessage };
enum Place : int { kMake, kUse, kFreed, kTalk, kSum, kBarrier, kLaunch };

/// What a rank does in a kind: work on a value that lives for it alone, a message from rank 0 to
/// rank 1, two collectives, and a carry that is launched or taken.
Program program_of(int64_t rank, const std::string& kind, Lifetime mean) {
  ProgramBuilder b(2, {rank});
  const int pair = b.lists("pair", {{0, 1}});
  for (const char* name : {"snap", "mean"})
    b.array(name, 1, name[0] == 'm' ? mean : Lifetime::kResident, 8);
  b.array("part", 1, Lifetime::kTransient, 8);
  b.array("message", 1, Lifetime::kResident, 8);
  b.add(say(2 * 32, {at(kSnap)}, {at(kPart)}));
  b.touch({at(kPart)}, {at(kSnap)});
  b.free(at(kPart));
  rank == 0 ? b.send(at(kMessage), 1, 2) : b.receive(at(kMessage), 0, 2);
  b.add(OpKind::kAllReduce, {at(kSnap)}, {at(kSnap)}, 1, pair);
  b.add(OpKind::kBarrier, {}, {}, 1, pair);
  if (mean == Lifetime::kCarryOut)
    b.add(OpKind::kAllReduce, {at(kSnap)}, {at(kMean)}, 1, pair);
  else
    b.touch({at(kMean)}, {updated(at(kSnap))});
  Program program = b.take();
  program.step_kind = kind;
  return program;
}

StepKind kind_of(const std::string& name, Lifetime mean) {
  return {name, {program_of(0, name, mean), program_of(1, name, mean)}};
}

ProgramSet honest() {
  ProgramSet set;
  set.kinds = {kind_of("launch", Lifetime::kCarryOut), kind_of("take", Lifetime::kCarryIn)};
  set.rules = {{"round", "*", {}, {"launch", "take"}}};
  return set;
}

Op& op_at(Program& program, Place place) { return std::get<Op>(program.body[place]); }

/// What the verifier says of the set after `lie` has changed the program that rank 0 launches with.
template <class Lie>
std::string told(const Lie& lie) {
  ProgramSet set = honest();
  lie(set.kinds[0].classes[0]);
  std::string text;
  for (const Problem& problem : verify(set)) text += problem.kind + ": " + problem.message + "\n";
  return text;
}

TEST(Lies, TheHonestSetIsLegal) {
  EXPECT_EQ(told([](Program&) {}), "");
}

TEST(Lies, AValueUsedAfterItIsFreed) {
  EXPECT_THAT(
      told([](Program& p) { std::swap(p.body[kUse], p.body[kFreed]); }),
      HasSubstr("use-after-free: test/launch, rank class 0: `snap = touch(part)` reads part, "
                "but `free part` comes first"));
}

TEST(Lies, ACostBelowTheSizesOfTheOperands) {
  EXPECT_THAT(told([](Program& p) { op_at(p, kMake).attributes = {63.0}; }),
              HasSubstr("is said to touch 63 bytes, but its operands have 64"));
}

TEST(Lies, AMessageWithoutItsMatch) {
  EXPECT_THAT(told([](Program& p) { p.body.erase(p.body.begin() + kTalk); }),
              HasSubstr("unmatched-message: test/launch, rank class 1: group world, world.1: rank "
                        "class 1 receives 1 messages from rank 0, which sends 0"));
}

TEST(Lies, AnOrderOfCollectivesThatDiffers) {
  EXPECT_THAT(told([](Program& p) { std::swap(p.body[kSum], p.body[kBarrier]); }),
              HasSubstr("collective-order: test/launch, rank class 0: group pair, world.0: rank "
                        "class 0 starts `barrier on world.0 among pair` where class 1 starts "
                        "`snap = all_reduce(snap) on world.0 among pair`"));
}

TEST(Lies, AGroupWhoseMembersDisagree) {
  EXPECT_THAT(told([](Program& p) {
                p.groups[1] = {"pair", 1, 1, 0};
              }),
              HasSubstr("group-members: test/launch, rank class 1: group pair joins rank 0 with "
                        "ranks 0, 1 where group pair of rank class 0 has ranks 0"));
}

TEST(Lies, ACarryWithoutATaker) {
  ProgramSet set = honest();
  set.kinds[1] = kind_of("take", Lifetime::kResident);
  const std::vector<Problem> problems = verify(set);
  ASSERT_EQ(problems.size(), 2u) << "one per class";
  EXPECT_EQ(problems[0].kind, "carry");
  EXPECT_THAT(problems[0].message,
              HasSubstr("test/launch, rank class 0: carry mean has no taker: no "
                        "kind takes it over"));
}

TEST(Lies, ACarryTakenTwice) {
  ProgramSet set = honest();
  set.kinds.push_back(kind_of("again", Lifetime::kCarryIn));
  set.rules[0].kinds.push_back("again");
  const std::vector<Problem> problems = verify(set);
  ASSERT_EQ(problems.size(), 2u) << "one per class";
  EXPECT_EQ(problems[0].kind, "carry");
  EXPECT_THAT(problems[0].message,
              HasSubstr("test/take, rank class 0: carry mean is taken twice: here, and again by "
                        "again"));
}

}  // namespace
}  // namespace strait::program
