#include "strait/program/program_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "strait/base/errors.h"

namespace strait::program {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Agreed scalars by array, and which ones were asked for.
struct Scalars {
  std::map<std::string, std::vector<double>> values;
  std::vector<std::string> asked = {};
  ReadScalar read() {
    return [this](const AgreedScalar& scalar) {
      asked.push_back(scalar.array);
      return values.at(scalar.array).at(static_cast<size_t>(scalar.element));
    };
  }
};

Rule rule(const char* purpose, const char* after, const std::optional<AgreedScalar>& unless_zero,
          std::vector<std::string> kinds) {
  Rule made;
  made.purpose = purpose;
  made.after = after;
  made.unless_zero = unless_zero;
  made.kinds = std::move(kinds);
  return made;
}

/// What runs in the turn of a step.
std::vector<std::string> next(const ProgramSet& set, const std::string& purpose,
                              const std::string& after, const ReadScalar& read, int64_t step = 0) {
  std::vector<const std::string*> kinds;
  set.next(purpose, {after, step}, read, kinds);
  std::vector<std::string> names;
  for (const std::string* kind : kinds) names.push_back(*kind);
  return names;
}

/// A step that goes on from the one before when nothing changed, with a border after every round.
ProgramSet example() {
  ProgramSet set;
  const std::optional<AgreedScalar> always, changed = AgreedScalar{"results", 1};
  set.rules = {rule("step", "", always, {"first"}), rule("step", "first", always, {"steady"}),
               rule("step", "*", changed, {"steady", "border"}),
               rule("step", "*", always, {"unchanged"}), rule("start", "*", always, {})};
  return set;
}

TEST(ProgramSet, TheFirstRuleThatHoldsDecides) {
  const ProgramSet set = example();
  Scalars scalars{{{"results", {0, 0}}}};
  EXPECT_THAT(next(set, "step", "", scalars.read()), ElementsAre("first"));
  EXPECT_THAT(next(set, "step", "first", scalars.read()), ElementsAre("steady"));
  EXPECT_THAT(scalars.asked, IsEmpty()) << "no rule that could hold asks";
  EXPECT_THAT(next(set, "step", "steady", scalars.read()), ElementsAre("unchanged"));
  EXPECT_THAT(scalars.asked, ElementsAre("results"));
}

TEST(ProgramSet, AScalarThatIsNotZeroHolds) {
  const ProgramSet set = example();
  for (const double value : {1.0, -1.0, 1e-300}) {
    Scalars scalars{{{"results", {0, value}}}};
    EXPECT_THAT(next(set, "step", "steady", scalars.read()), ElementsAre("steady", "border"))
        << value;
  }
  Scalars other_element{{{"results", {1, 0}}}};
  EXPECT_THAT(next(set, "step", "steady", other_element.read()), ElementsAre("unchanged"));
}

TEST(ProgramSet, APurposeHasRulesOfItsOwnAndMayNeedNothing) {
  const ProgramSet set = example();
  Scalars scalars;
  EXPECT_THAT(next(set, "start", "", scalars.read()), IsEmpty());
  EXPECT_THAT(next(set, "start", "steady", scalars.read()), IsEmpty());
}

TEST(ProgramSet, BordersComeBehindTheStepInTheirTurns) {
  ProgramSet set = example();
  const auto border = [&](const char* kind, const Turns& turns) {
    set.rules.push_back(rule("step", "*", {}, {kind}));
    set.rules.back().turns = turns;
  };
  border("land", {5, 4});
  border("launch", {3, 4});
  border("hold", {3, 4, 2});
  Scalars scalars{{{"results", {0, 0}}}};
  std::vector<std::string> borders;
  for (int64_t step = 0; step < 10; ++step) {
    const std::vector<std::string> kinds = next(set, "step", "steady", scalars.read(), step);
    EXPECT_EQ(kinds.front(), "unchanged");
    for (size_t at = 1; at < kinds.size(); ++at)
      borders.push_back(std::to_string(step) + kinds[at]);
  }
  EXPECT_THAT(borders, ElementsAre("3launch", "3hold", "4hold", "5land", "7launch", "7hold",
                                   "8hold", "9land"));
  EXPECT_THAT(next(set, "start", "", scalars.read(), 3), IsEmpty()) << "of another purpose";
}

TEST(ProgramSet, AStepThatHoldsItsBorderDecidesInItsTurns) {
  ProgramSet set = example();
  set.rules.insert(set.rules.begin(), rule("step", "*", {}, {"step and launch"}));
  set.rules.front().turns = {3, 4};
  set.rules.front().holds_step = true;
  set.rules.push_back(rule("step", "*", {}, {"land"}));
  set.rules.back().turns = {3, 2};
  Scalars scalars{{{"results", {0, 0}}}};
  EXPECT_THAT(next(set, "step", "steady", scalars.read(), 2), ElementsAre("unchanged"));
  EXPECT_THAT(next(set, "step", "steady", scalars.read(), 3),
              ElementsAre("step and launch", "land"));
  EXPECT_THAT(next(set, "step", "steady", scalars.read(), 5), ElementsAre("unchanged", "land"));
  EXPECT_THAT(next(set, "step", "steady", scalars.read(), 7),
              ElementsAre("step and launch", "land"));
}

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "no InternalError";
}

TEST(ProgramSet, WhatNoRuleSaysIsAnError) {
  const ProgramSet set = example();
  Scalars scalars;
  EXPECT_THAT(error_of([&] { next(set, "evaluation", "steady", scalars.read()); }),
              HasSubstr("no rule says what runs for the purpose evaluation after 'steady'"));
  ProgramSet narrow;
  narrow.rules = {rule("step", "first", {}, {"steady"})};
  EXPECT_THAT(error_of([&] { next(narrow, "step", "", scalars.read()); }),
              HasSubstr("for the purpose step after ''"));
}

TEST(ProgramSet, EveryRankFindsItsProgramOfAKind) {
  ProgramSet set;
  for (const char* kind : {"steady", "evaluation"}) {
    StepKind one{kind, {}};
    for (int64_t c = 0; c < 2; ++c) {
      Program program;
      program.step_kind = kind;
      program.name = std::to_string(c);
      program.members = {c, c + 2};
      one.classes.push_back(program);
    }
    set.kinds.push_back(one);
  }
  Program whole;
  whole.step_kind = "publish";
  set.kinds.push_back({"publish", {whole}});
  for (const int64_t rank : {0, 1, 2, 3}) {
    EXPECT_EQ(set.program("evaluation", rank).name, std::to_string(rank % 2));
    EXPECT_EQ(set.program("evaluation", rank).step_kind, "evaluation");
    EXPECT_EQ(set.program("publish", rank).step_kind, "publish") << "no members: every rank";
  }
  EXPECT_EQ(set.classes("steady").size(), 2u);
  EXPECT_EQ(set.find("steady"), &set.kinds[0]);
  EXPECT_EQ(set.find("skipped"), nullptr);
  EXPECT_THAT(error_of([&] { set.classes("skipped"); }),
              HasSubstr("no program of the kind skipped"));
  EXPECT_THAT(error_of([&] { set.program("steady", 4); }), HasSubstr("rank 4 is in no rank class"));
}

}  // namespace
}  // namespace strait::program
