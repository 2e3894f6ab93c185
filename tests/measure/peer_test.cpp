// Child processes: talk, silence, death and clean-up.
#include "strait/measure/peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>

#include "strait/base/clock.h"
#include "strait/base/errors.h"

namespace strait::measure {
namespace {

using ::testing::HasSubstr;

TEST(Peer, AnswersLineByLine) {
  PeerProcess peer({"/bin/sh", "-c", "echo ready 1; while read word; do echo \"got $word\"; done"});
  EXPECT_EQ(peer.read_line(10), "ready 1");
  for (const char* word : {"one", "two", "three"}) {
    peer.write_line(word);
    EXPECT_EQ(peer.read_line(10), std::string("got ") + word);
  }
}

TEST(Peer, SplitsAndJoinsLines) {
  PeerProcess peer({"/bin/sh", "-c", "printf 'a\\nb\\n\\nlo'; sleep 0.05; printf 'ng\\n'"});
  EXPECT_EQ(peer.read_line(10), "a");
  EXPECT_EQ(peer.read_line(10), "b");
  EXPECT_EQ(peer.read_line(10), "");
  EXPECT_EQ(peer.read_line(10), "long");
}

TEST(Peer, SilencePassesTheDeadline) {
  PeerProcess peer({"/bin/sh", "-c", "echo warned >&2; exec sleep 100"});
  const double start = now_seconds();
  try {
    peer.read_line(0.3);
    FAIL();
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("0.3 seconds"));
    EXPECT_THAT(error.what(), HasSubstr("it said: warned"));
  }
  EXPECT_LT(now_seconds() - start, 60.0);
}

TEST(Peer, DeathIsToldWithTheLastWords) {
  PeerProcess peer({"/bin/sh", "-c", "echo first >&2; echo no such module >&2; exit 3"});
  try {
    peer.read_line(10);
    FAIL();
  } catch (const PeerLost& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("/bin/sh: ended without an answer; it said: no such module"));
  }
}

TEST(Peer, WritingToTheDeadThrowsAndDoesNotKillUs) {
  PeerProcess peer({"/bin/sh", "-c", "exit 0"});
  EXPECT_THROW(peer.read_line(10), PeerLost);
  EXPECT_THROW(
      {
        for (int i = 0; i < 10; ++i) peer.write_line("step");
      },
      PeerLost);
}

TEST(Peer, ProgramsThatDoNotExistAreAnError) {
  try {
    PeerProcess peer({"/no/such/program"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/no/such/program: cannot be started"));
  }
}

TEST(Peer, DestructionKillsAndReaps) {
  pid_t pid = 0;
  const double start = now_seconds();
  {
    PeerProcess peer(
        {"/bin/sh", "-c", "trap '' TERM INT HUP; echo up; while true; do sleep 1; done"});
    EXPECT_EQ(peer.read_line(10), "up");
    pid = peer.pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_LT(now_seconds() - start, 60.0);
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(Peer, ClosedInputEndsTheChild) {
  PeerProcess peer({"/bin/sh", "-c", "cat; echo bye"});
  peer.write_line("hello");
  EXPECT_EQ(peer.read_line(10), "hello");
  peer.close_input();
  EXPECT_EQ(peer.read_line(10), "bye");
}

}  // namespace
}  // namespace strait::measure
