// Groups by stride and by explicit lists: who is where, and what the verifier refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/verify/verify.h"
#include "tests/program/program_builder.h"

namespace strait::program {
namespace {

using testing::HasSubstr;
using Lists = std::vector<std::vector<int64_t>>;

Group listed(Lists lists) {
  const int64_t size = static_cast<int64_t>(lists.front().size());
  return {"listed", size, 1, 0, {}, MemberLists(std::move(lists))};
}

Group strided(int64_t size, int64_t stride) { return {"strided", size, stride}; }

TEST(Groups, ListsAnswerLikeTheStrideTheySpellOut) {
  for (const int64_t size : {1, 2, 3, 4}) {
    for (const int64_t stride : {1, 2, 3}) {
      const Group plain = strided(size, stride);
      const int64_t ranks = 2 * size * stride;
      Lists lists;
      for (int64_t rank = 0; rank < ranks; ++rank)
        if (plain.position(rank) == 0) lists.push_back(plain.members(rank));
      const Group group = listed(lists);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(group.position(rank), plain.position(rank));
        EXPECT_EQ(group.part(rank), plain.part(rank));
        EXPECT_EQ(group.members(rank), plain.members(rank));
      }
      EXPECT_TRUE(same_members(group, plain, ranks));
      EXPECT_TRUE(same_members(plain, group, ranks));
      EXPECT_EQ(same_members(group, strided(size, stride + 1), ranks), size == 1);
    }
  }
}

TEST(Groups, ARankInNoListTakesNoPart) {
  const Group group = listed({{0, 3}, {2, 5}});
  EXPECT_TRUE(group.holds(3));
  EXPECT_FALSE(group.holds(1));
  EXPECT_EQ(group.members(5), (std::vector<int64_t>{2, 5}));
  EXPECT_FALSE(same_members(group, listed({{0, 3}}), 6));
}

/// Ranks 0 and 3 sum a value, as tied weights of the first and the last stage do; the others
/// compute.
std::vector<Program> tied(const Lists& first, const Lists& last,
                          std::vector<int64_t> inner = {1, 2}) {
  std::vector<Program> classes;
  const std::vector<std::pair<std::vector<int64_t>, Lists>> parts = {
      {{0}, first}, {{3}, last}, {inner, {}}};
  for (const auto& [members, lists] : parts) {
    ProgramBuilder b(4, members);
    const int value = b.array("g", 1, Lifetime::kResident, 6);
    if (lists.empty())
      b.touch({}, {at(value)});
    else
      b.add(OpKind::kAllReduce, {at(value)}, {at(value)}, 1, b.lists("tie", lists));
    classes.push_back(b.take());
  }
  return classes;
}

std::string problem(const std::vector<Program>& classes) {
  const std::vector<Problem> problems = verify(classes);
  return problems.empty() ? "" : problems[0].kind + ": " + problems[0].message;
}

TEST(Groups, ListsThatLeaveRanksOutAreLegal) {
  EXPECT_EQ(problem(tied({{0, 3}}, {{0, 3}})), "");
  EXPECT_THAT(print(tied({{0, 3}}, {{0, 3}})[0]), HasSubstr("group tie        2 ranks: 0 3"));
}

TEST(Groups, MembersThatDisagreeAreRefusedByName) {
  EXPECT_THAT(problem(tied({{0, 3}}, {{1, 3}})),
              HasSubstr("group-members: test/steady, rank class 1: group tie joins rank 0 with "
                        "nobody where group tie of rank class 0 has ranks 0, 3"));
}

TEST(Groups, TwoNamesForTheSameRanksMustMeanTheSameEverywhere) {
  std::vector<Program> classes = tied({{0, 3}}, {{0, 3}});
  Group other = classes[1].groups.back();
  other.name = "knot";
  classes[1].groups.back() = other;
  EXPECT_EQ(problem(classes), "");
  other.lists = MemberLists({{0, 3}, {1, 2}});
  classes[1].groups.back() = other;
  EXPECT_THAT(problem(classes), HasSubstr("group-members: "));
  EXPECT_THAT(problem(classes), HasSubstr("group knot joins rank 1 with ranks 1, 2 where group tie "
                                          "of rank class 0 has nobody"));
}

TEST(Groups, ListsThatBreakTheRulesAreRefused) {
  const std::pair<Lists, const char*> wrong[] = {
      {{{3, 0}}, "group tie lists 3, 0, which do not ascend"},
      {{{0, 3}, {1}}, "group tie lists 1, which are not 2 ranks"},
      {{{0, 3}, {2, 3}}, "group tie lists rank 3 twice"},
      {{{0, 3}, {1, 4}}, "group tie lists rank 4 of a world of 4"},
      {{{-1, 0}, {1, 3}}, "group tie lists rank -1 of a world of 4"},
      {{{1, 3}}, "uses group tie, which does not hold its rank 0"},
  };
  for (const auto& [lists, words] : wrong)
    EXPECT_THAT(problem(tied(lists, lists)), HasSubstr(words)) << words;
  std::vector<Program> classes = tied({{0, 3}}, {{0, 3}});
  classes[0].groups.back().stride = 2;
  EXPECT_THAT(problem(classes),
              HasSubstr("lists its members, so it has neither a stride nor hops"));
}

}  // namespace
}  // namespace strait::program
