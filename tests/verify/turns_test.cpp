// Carries across the borders of a purpose: legal turns pass, and each way to lose, to take twice or
// to forget what is under way is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/verify/verify.h"
#include "tests/program/program_builder.h"

namespace strait::program {
namespace {

using ::testing::HasSubstr;

/// What a kind does with the value "mean" that is under way between borders.
enum class Part { kNothing, kLaunch, kLand, kRound, kLook };

Lifetime lifetime_of(Part part) {
  if (part == Part::kLaunch) return Lifetime::kCarryOut;
  if (part == Part::kLand) return Lifetime::kCarryIn;
  return part == Part::kRound ? Lifetime::kCarry : Lifetime::kResident;
}

StepKind kind_of(const std::string& name, Part part) {
  ProgramBuilder b(2);
  const int snap = b.array("snap", 1, Lifetime::kResident, 8);
  const int sum = b.array("sum", 1, Lifetime::kResident, 8);
  const int mean = b.array("mean", 1, lifetime_of(part), 8);
  if (part == Part::kLand || part == Part::kRound || part == Part::kLook)
    b.touch({at(mean)}, {at(sum)});
  if (part == Part::kLaunch || part == Part::kRound)
    b.add(OpKind::kAllReduce, {at(snap)}, {at(mean)}, 1);
  if (part == Part::kNothing) b.touch({at(snap)}, {at(sum)});
  Program program = b.take();
  program.step_kind = name;
  return {name, {program}};
}

Rule border(const std::string& purpose, const std::string& kind, Turns turns) {
  return {purpose, "*", {}, {kind}, turns};
}

/// Places of the rules of both sets below.
enum Place : int { kStep, kLaunches, kLands, kStarts, kEnds };

/// Behind steps 1, 5, 9 a mean is launched and behind steps 3, 7, 11 it lands. It is under way
/// before steps 2 and 3, 6 and 7: there a run launches it again, or takes it up at its end.
ProgramSet honest() {
  ProgramSet set;
  set.kinds = {kind_of("step", Part::kNothing), kind_of("launch", Part::kLaunch),
               kind_of("land", Part::kLand), kind_of("relaunch", Part::kLaunch),
               kind_of("look", Part::kLook)};
  set.rules = {{"step", "*", {}, {"step"}},
               border("step", "launch", {1, 4, 1}),
               border("step", "land", {3, 4, 1}),
               border(ProgramSet::kStart, "relaunch", {2, 4, 2}),
               border(ProgramSet::kEnd, "land", {2, 4, 2})};
  return set;
}

/// Behind every second step from 1 on a round takes up what the one before launched.
ProgramSet rounds() {
  ProgramSet set = honest();
  set.kinds.push_back(kind_of("round", Part::kRound));
  set.rules = {{"step", "*", {}, {"step"}},
               border("step", "round", {1, 2, 1}),
               border("step", "look", {0, 1, 0}),
               border(ProgramSet::kStart, "relaunch", {2, 1, 1}),
               border(ProgramSet::kEnd, "land", {2, 1, 1})};
  return set;
}

std::string problems_of(const ProgramSet& set) {
  std::string text;
  for (const Problem& problem : verify(set)) text += problem.kind + ": " + problem.message + "\n";
  return text;
}

/// What the verifier says of a set after `lie` has changed its rules.
template <class Lie>
std::string told(ProgramSet set, const Lie& lie) {
  lie(set.rules);
  return problems_of(set);
}

using Rules = std::vector<Rule>;

TEST(Turns, HonestBordersAreLegal) {
  EXPECT_EQ(problems_of(honest()), "");
  EXPECT_EQ(problems_of(rounds()), "");
}

/// As honest(), where the launch is one program with its step.
TEST(Turns, StepsThatHoldTheirBordersAreFollowed) {
  ProgramSet set = honest();
  set.rules[kLaunches].holds_step = true;
  EXPECT_EQ(problems_of(set), "");
  set.rules[kLands].turns.first = 4;
  EXPECT_THAT(problems_of(set), HasSubstr("is under way before step 4"));
}

TEST(Turns, ARunThatStartsMustLaunchWhatIsUnderWay) {
  EXPECT_EQ(told(honest(), [](Rules& rules) { rules[kStarts].turns.length = 1; }),
            "carry: carry mean is under way before step 3, but a run that starts there does not "
            "launch it\n");
  EXPECT_EQ(told(rounds(), [](Rules& rules) { rules[kStarts].turns.first = 3; }),
            "carry: carry mean is under way before step 2, but a run that starts there does not "
            "launch it\n");
}

TEST(Turns, ARunThatEndsMustTakeWhatIsUnderWay) {
  EXPECT_EQ(told(honest(), [](Rules& rules) { rules[kEnds].turns.length = 1; }),
            "carry: carry mean is under way before step 3, but a run that ends there does not "
            "take it over\n");
}

TEST(Turns, AStartOrAnEndNamesOnlyWhatIsUnderWay) {
  EXPECT_EQ(told(honest(),
                 [](Rules& rules) {
                   rules[kStarts].turns = {1, 4, 3};
                 }),
            "carry: carry mean is named by the purpose start before step 1, but is not under way "
            "there\n");
  EXPECT_EQ(told(honest(), [](Rules& rules) { rules[kEnds].turns.length = 3; }),
            "carry: carry mean is named by the purpose end before step 4, but is not under way "
            "there\n");
}

TEST(Turns, ABorderThatUsesItWithoutTakingItIsRefused) {
  EXPECT_THAT(told(honest(),
                   [](Rules& rules) {
                     rules.insert(rules.begin() + kLands, border("step", "look", {2, 4, 1}));
                   }),
              HasSubstr("carry mean is used by look in step 2 without being taken over"));
}

TEST(Turns, AStepThatUsesItWithoutTakingItIsRefused) {
  EXPECT_THAT(told(honest(),
                   [](Rules& rules) {
                     rules.push_back({"step", "step", {}, {"look"}});
                   }),
              HasSubstr("carry mean is used by look in step 2 without being taken over"));
}

TEST(Turns, ABorderThatTakesWhatNobodyLeftIsRefused) {
  EXPECT_EQ(told(honest(),
                 [](Rules& rules) {
                   rules[kLands].turns = {0, 4, 1};
                 }),
            "carry: carry mean is taken by land in step 0, but nothing has left it\n");
}

TEST(Turns, ABorderThatTakesWhatNoKindLeavesIsRefused) {
  ProgramSet set = honest();
  set.rules = {set.rules[kStep], set.rules[kLands]};
  set.kinds.erase(set.kinds.begin() + 3);
  set.kinds.erase(set.kinds.begin() + 1);
  EXPECT_EQ(problems_of(set),
            "carry: carry mean is taken by land in step 3, but nothing has left it\n");
}

TEST(Turns, ALaunchWhileOneIsUnderWayIsRefused) {
  EXPECT_EQ(told(honest(), [](Rules& rules) { rules[kLaunches].turns.length = 2; }),
            "carry: carry mean is left by launch in step 2 while it is still under way\n");
}

TEST(Turns, ALaunchThatNeverLandsIsRefusedWhenItsTurnComesAgain) {
  EXPECT_EQ(told(honest(),
                 [](Rules& rules) {
                   rules[kStarts].turns = rules[kEnds].turns = {2, 1, 1};
                   rules.erase(rules.begin() + kLands);
                 }),
            "carry: carry mean is left by launch in step 5 while it is still under way\n");
}

TEST(Turns, BordersThatBeginLateAreReached) {
  EXPECT_EQ(told(honest(),
                 [](Rules& rules) {
                   rules.insert(rules.begin() + kLands, border("step", "look", {22, 4, 1}));
                 }),
            "carry: carry mean is used by look in step 22 without being taken over\n");
}

TEST(Turns, BordersOfDifferentPeriodsAreFollowedUntilTheyRepeat) {
  const std::string text = told(honest(), [](Rules& rules) {
    rules[kLands].turns.first = rules[kStarts].turns.first = rules[kEnds].turns.first = 2;
    rules[kStarts].turns.length = rules[kEnds].turns.length = 1;
    rules.insert(rules.begin() + kLaunches, border("step", "look", {1, 3, 1}));
  });
  EXPECT_EQ(text, "carry: carry mean is used by look in step 10 without being taken over\n");
}

}  // namespace
}  // namespace strait::program
