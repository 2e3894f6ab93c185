// Carries across the kinds of a set: legal rounds pass, and each way to lose one is refused by
// name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/verify/verify.h"
#include "tests/program/program_builder.h"

namespace strait::program {
namespace {

using ::testing::HasSubstr;

/// A program with a resident "mean": launched by an all-reduce, or used by a kernel.
Program one(const std::string& kind, Lifetime lifetime, bool launches, bool uses) {
  ProgramBuilder b(2);
  const int snap = b.array("snap", 1, Lifetime::kResident, 8);
  const int mean = b.array("mean", 1, lifetime, 8);
  const int sum = b.array("sum", 1, Lifetime::kResident, 8);
  if (uses) b.touch({at(mean)}, {at(sum)});
  if (launches) b.add(OpKind::kAllReduce, {at(snap)}, {at(mean)}, 1);
  Program program = b.take();
  program.step_kind = kind;
  return program;
}

/// Steps, and borders of rounds that take the mean of the round before and launch the next.
ProgramSet rounds(Lifetime step, bool step_uses, Lifetime border) {
  ProgramSet set;
  set.kinds = {{"step", {one("step", step, false, step_uses)}},
               {"border", {one("border", border, true, true)}}};
  set.rules = {{"step", "*", {}, {"step"}}, {"border", "*", {}, {"step", "border"}}};
  return set;
}

std::string problems_of(const ProgramSet& set) {
  std::string text;
  for (const Problem& problem : verify(set)) text += problem.kind + ": " + problem.message + "\n";
  return text;
}

TEST(Carry, ARoundThatTakesWhatTheOneBeforeLaunchedIsLegal) {
  EXPECT_EQ(problems_of(rounds(Lifetime::kResident, false, Lifetime::kCarry)), "");
  EXPECT_EQ(problems_of(rounds(Lifetime::kCarry, true, Lifetime::kCarry)), "");
}

TEST(Carry, AKindWithinATurnIsFollowedByTheNextOneOnly) {
  ProgramSet set;
  set.kinds = {{"launch", {one("launch", Lifetime::kCarryOut, true, false)}},
               {"take", {one("take", Lifetime::kCarryIn, false, true)}}};
  set.rules = {{"round", "*", {}, {"launch", "take"}}};
  EXPECT_EQ(problems_of(set), "");
  set.rules.push_back({"alone", "*", {}, {"launch"}});
  EXPECT_THAT(problems_of(set), HasSubstr("carry mean has no taker: launch, which may follow"));
}

TEST(Carry, WithoutATakerItIsRefused) {
  EXPECT_THAT(problems_of(rounds(Lifetime::kResident, false, Lifetime::kCarryOut)),
              HasSubstr("test/border, rank class 0: carry mean has no taker"));
}

TEST(Carry, AFollowerThatUsesItWithoutTakingItIsRefused) {
  EXPECT_THAT(problems_of(rounds(Lifetime::kResident, true, Lifetime::kCarry)),
              HasSubstr("carry mean has no taker: step, which may follow, uses it"));
}

TEST(Carry, TakenTwiceItIsRefused) {
  ProgramSet set;
  set.kinds = {{"launch", {one("launch", Lifetime::kCarryOut, true, false)}},
               {"first", {one("first", Lifetime::kCarryIn, false, true)}},
               {"second", {one("second", Lifetime::kCarryIn, false, true)}}};
  set.rules = {{"round", "*", {}, {"launch", "first", "second"}}};
  EXPECT_THAT(problems_of(set), HasSubstr("test/first, rank class 0: carry mean is taken twice: "
                                          "here, and again by second"));
}

}  // namespace
}  // namespace strait::program
