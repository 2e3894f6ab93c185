// What one program leaves under way, and the programs after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/runtime/thread_ranks.h"

namespace strait::runtime {
namespace {

TEST(Carries, ATransferOfWhatIsStillBeingCarriedHoldsUpNoComputing) {
  constexpr int64_t kElements = 1 << 12;
  Program leave = start_program(2);
  leave.streams.push_back({"world", 1});
  const int x = add_value(leave, "x", kElements, program::Lifetime::kResident);
  const int y = add_value(leave, "y", kElements, program::Lifetime::kCarry);
  Program take = leave;
  const int z = add_value(take, "z", kElements, program::Lifetime::kResident);
  const int other = add_value(take, "other", 8, program::Lifetime::kResident);
  leave.body = {all_reduce(x, y)};
  Op further = all_reduce(y, z);
  further.stream = 2;
  take.body = {further, touch("compute", other), touch("needs z", z)};
  // Rank 1 takes part in the first all-reduce only after rank 0 has computed in the second program.
  std::atomic<bool> computed{false};
  on_ranks(2, [&](Rank& rank) {
    if (rank.number() == 0) rank.executor.during = [&](const Instance&) { computed = true; };
    Interpreter first(leave, rank.site());
    Interpreter second(take, rank.site());
    auto* source = static_cast<float*>(rank.state.array("x").buffers[0]);
    std::fill(source, source + kElements, 1.0f);
    const double limit = now_seconds() + 10;
    while (rank.number() == 1 && !computed && now_seconds() < limit) std::this_thread::yield();
    EXPECT_TRUE(rank.number() == 0 || computed);
    first.run(0);
    second.run(1);
    rank.state.drain();
    const auto* sum = static_cast<const float*>(rank.state.array("z").buffers[0]);
    EXPECT_EQ(std::count(sum, sum + kElements, 4.0f), kElements);
  });
}

/// Two sums of x, each on a stream of its own, are left under way. Rank 1 is late for the first
/// one.
std::vector<Program> two_sums_under_way() {
  std::vector<Program> classes;
  for (int64_t rank = 0; rank < 2; ++rank) {
    Program program = start_program(2);
    program.streams.push_back({"world", 1});
    program.members = {rank};
    const int x = add_value(program, "x", 64, program::Lifetime::kResident);
    const int early = add_value(program, "early", 64, program::Lifetime::kCarry);
    const int late = add_value(program, "late", 64, program::Lifetime::kCarry);
    Op second = all_reduce(x, early);
    second.stream = 2;
    program.body = {touch("fill", x), all_reduce(x, late), second};
    if (rank == 1)
      program.body = {touch("fill", x), second, touch("sleep", x), all_reduce(x, late)};
    classes.push_back(std::move(program));
  }
  return classes;
}

TEST(Carries, WhatTheyReadIsNotOverwrittenBeforeAllOfThemHaveEnded) {
  const std::vector<Program> leave = two_sums_under_way();
  Program next = start_program(2);
  const int x = add_value(next, "x", 64, program::Lifetime::kResident);
  next.body = {touch("overwrite", x)};
  on_ranks(2, [&](Rank& rank) {
    rank.executor.during = [&](const Instance& instance) {
      auto* numbers = static_cast<float*>(instance.writes[0].data);
      const std::string name = name_of(*instance.op);
      if (name == "sleep") std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (name == "fill") std::fill(numbers, numbers + 64, 1.0f);
      if (name == "overwrite") std::fill(numbers, numbers + 64, 50.0f);
    };
    Interpreter first(leave[static_cast<size_t>(rank.number())], rank.site());
    Interpreter second(next, rank.site());
    first.run(0);
    second.run(1);
    rank.state.drain();
    for (const char* name : {"early", "late"})
      EXPECT_EQ((rank.state.read<float, 1>(name)[0]), 2.0f) << name << " on rank " << rank.number();
  });
}

/// Rank 0 leaves a sum under way, fails in its next program and gives its memory back, which rank
/// 1, late for the sum, would still read.
TEST(Carries, MemoryStaysUntilTheyHaveEndedWhenARankFails) {
  Program leave = start_program(2);
  const int x = add_value(leave, "x", 64, program::Lifetime::kResident);
  const int y = add_value(leave, "y", 64, program::Lifetime::kCarry);
  leave.body = {all_reduce(x, y)};
  Program next = start_program(2);
  next.body = {touch("fail", add_value(next, "z", 64, program::Lifetime::kResident))};
  std::atomic<bool> failing{false};
  int failed = 0;
  on_ranks(2, [&](Rank& rank) {
    rank.executor.during = [&](const Instance&) {
      failing = true;
      throw UserError("struck");
    };
    Interpreter first(leave, rank.site());
    Interpreter second(next, rank.site());
    if (rank.number() == 1) {
      while (!failing) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_THROW(
          {
            first.run(0);
            rank.state.drain();
          },
          PeerLost);
      return;
    }
    first.run(0);
    comm::Ticket ticket = rank.state.array("y").carries[0].tickets.at(0);
    EXPECT_THROW(second.run(1), UserError);
    rank.state.release("");
    EXPECT_TRUE(ticket.done());
    ++failed;
  });
  EXPECT_EQ(failed, 1);
}

}  // namespace
}  // namespace strait::runtime
