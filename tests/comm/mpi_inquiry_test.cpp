// What one host tells another about its ranks arrives whole, on the other's clock.
#include <gtest/gtest.h>

#include "strait/comm/mpi/inquiry.h"

namespace strait::comm {
namespace {

using trace::LaneStanding;
using trace::Standing;

TEST(Inquiry, StandingsArriveOnTheClockOfWhoAsked) {
  std::vector<Standing> there(4);
  there[2].kind = Standing::Kind::kBusy;
  there[2].place = {"y = forward block 3(x)", 7, 12};
  there[2].since = 90;
  there[2].beat = 99;
  LaneStanding lane;
  lane.communicator = 0xfedcba9876543210;
  lane.members = {0, 2, 3};
  lane.issued = 5;
  lane.number = 4;
  lane.turn = LaneStanding::Turn::kHeld;
  lane.held_by = 17;
  lane.kind = "all-gather";
  lane.place = {"W = all_gather(w)", 6, -1};
  lane.since = 80;
  there[2].lanes = {lane};
  there[3].kind = Standing::Kind::kMissing;
  std::vector<Standing> here(4);
  here[0].kind = Standing::Kind::kWaiting;
  here[3].kind = Standing::Kind::kAbsent;
  const std::string text = standings_text(there, {2, 3}, 100);
  EXPECT_EQ(take_standings(text, 1100, here), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(here[0].kind, Standing::Kind::kWaiting);
  EXPECT_EQ(here[3].kind, Standing::Kind::kMissing);
  EXPECT_EQ(here[2].kind, Standing::Kind::kBusy);
  EXPECT_EQ(here[2].place.operation, "y = forward block 3(x)");
  EXPECT_EQ(here[2].place.index, 12);
  EXPECT_DOUBLE_EQ(here[2].since, 1090);
  EXPECT_DOUBLE_EQ(here[2].beat, 1099);
  ASSERT_EQ(here[2].lanes.size(), 1u);
  EXPECT_EQ(here[2].lanes[0].communicator, 0xfedcba9876543210);
  EXPECT_EQ(here[2].lanes[0].members, (std::vector<int64_t>{0, 2, 3}));
  EXPECT_EQ(here[2].lanes[0].turn, LaneStanding::Turn::kHeld);
  EXPECT_EQ(here[2].lanes[0].held_by, 17u);
  EXPECT_DOUBLE_EQ(here[2].lanes[0].since, 1080);
}

}  // namespace
}  // namespace strait::comm
