#include "strait/program/lifetime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "strait/base/errors.h"
#include "strait/program/memory.h"
#include "strait/program/memory_json.h"
#include "tests/program/test_kernels.h"
#include "tests/sanitized.h"

namespace strait::program {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

/// Streams compute, world.0, world.1; arrays as declared, each element 100 bytes.
Program empty_program() {
  Program program;
  program.ranks = 2;
  program.streams = {{"compute", 0}, {"world", 0}, {"world", 1}};
  program.groups = {{"world", 2, 1, 0}};
  return program;
}

int declare(Program& program, const std::string& name, Lifetime lifetime, int64_t count = 1,
            int64_t bytes = 100) {
  ValueArray array;
  array.name = name;
  array.count = count;
  array.dtype = Dtype::kByte;
  array.partition = {bytes, bytes};
  array.lifetime = lifetime;
  program.arrays.push_back(array);
  return static_cast<int>(program.arrays.size()) - 1;
}

Operand value(int array, int64_t index = 0) { return at(array, index); }

Op make(OpKind kind, std::vector<Operand> reads, std::vector<Operand> writes, int stream = 0,
        std::vector<Operand> waits = {}) {
  Op op = make_op(kind, std::move(reads), std::move(writes), stream);
  op.waits = std::move(waits);
  op.group = stream > 0 ? 0 : -1;
  return op;
}

Op touch(std::vector<Operand> reads, std::vector<Operand> writes, std::vector<Operand> waits = {}) {
  Op op = touch_op(std::move(reads), std::move(writes));
  op.waits = std::move(waits);
  return op;
}
Op transfer(std::vector<Operand> reads, std::vector<Operand> writes, int stream,
            std::vector<Operand> waits = {}) {
  return make(OpKind::kAllReduce, std::move(reads), std::move(writes), stream, std::move(waits));
}
Op release(Operand operand) { return make(OpKind::kFree, {}, {operand}); }

const std::vector<int64_t> kNoLoops;

TEST(Lifetime, ComputeWaitsForTheWriterOfWhatItReads) {
  Program program = empty_program();
  const int w = declare(program, "w", Lifetime::kResident, 3);
  const int gathered = declare(program, "W", Lifetime::kTransient, 3);
  LifetimeTracker tracker(program);
  const StepPlan first = tracker.next(transfer({value(w, 0)}, {value(gathered, 0)}, 1), kNoLoops);
  EXPECT_EQ(first.communication, 0);
  EXPECT_EQ(first.previous, -1);
  EXPECT_THAT(first.allocate, ElementsAre(3));
  EXPECT_THAT(first.wait_for, IsEmpty());
  const StepPlan second = tracker.next(transfer({value(w, 1)}, {value(gathered, 1)}, 1), kNoLoops);
  EXPECT_EQ(second.communication, 1);
  EXPECT_EQ(second.previous, 0);
  EXPECT_THAT(tracker.next(touch({value(gathered, 1)}, {}), kNoLoops).wait_for, ElementsAre(1));
  EXPECT_TRUE(tracker.known_ended(0)) << "a later op on its stream was waited for";
  EXPECT_THAT(tracker.next(touch({value(gathered, 0)}, {}), kNoLoops).wait_for, IsEmpty());
  const StepPlan third = tracker.next(transfer({value(w, 2)}, {value(gathered, 2)}, 1), kNoLoops);
  EXPECT_EQ(third.previous, -1) << "the op before it is known to have ended";
}

TEST(Lifetime, ReadersBlockOverwritersButNotReaders) {
  Program program = empty_program();
  const int g = declare(program, "g", Lifetime::kResident);
  const int out = declare(program, "out", Lifetime::kResident, 2);
  LifetimeTracker tracker(program);
  tracker.next(transfer({value(g)}, {value(out, 0)}, 1), kNoLoops);
  EXPECT_THAT(tracker.next(touch({value(g)}, {}), kNoLoops).wait_for, IsEmpty());
  EXPECT_THAT(tracker.next(transfer({value(g)}, {value(out, 1)}, 2), kNoLoops).after, IsEmpty());
  EXPECT_THAT(tracker.next(touch({}, {value(g)}), kNoLoops).wait_for, ElementsAre(0, 1));
}

TEST(Lifetime, UpdatesAndAddsWaitForWritersAndReaders) {
  for (const Access access : {Access::kUpdate, Access::kAdd}) {
    Program program = empty_program();
    const int g = declare(program, "g", Lifetime::kResident);
    const int out = declare(program, "out", Lifetime::kResident);
    LifetimeTracker tracker(program);
    tracker.next(transfer({value(out)}, {value(g)}, 1), kNoLoops);
    tracker.next(transfer({value(g)}, {value(out)}, 2), kNoLoops);
    EXPECT_THAT(tracker.next(touch({}, {as(value(g), access)}), kNoLoops).wait_for,
                ElementsAre(0, 1))
        << access_name(access);
  }
}

TEST(Lifetime, CommunicationIsChainedAcrossStreams) {
  Program program = empty_program();
  const int a = declare(program, "a", Lifetime::kResident);
  const int b = declare(program, "b", Lifetime::kResident);
  const int c = declare(program, "c", Lifetime::kResident);
  LifetimeTracker tracker(program);
  tracker.next(transfer({value(a)}, {value(b)}, 1), kNoLoops);
  EXPECT_THAT(tracker.next(transfer({value(b)}, {value(c)}, 2), kNoLoops).after, ElementsAre(0));
  const StepPlan waits = tracker.next(touch({value(c)}, {}), kNoLoops);
  EXPECT_THAT(waits.wait_for, ElementsAre(1));
  EXPECT_TRUE(tracker.known_ended(0)) << "op 1 was started after op 0";
  EXPECT_THAT(tracker.next(touch({}, {value(a)}), kNoLoops).wait_for, IsEmpty());
}

TEST(Lifetime, WaitsNameAllEarlierUsesAndIgnoreWhatIsOutOfRange) {
  Program program = empty_program();
  const int a = declare(program, "a", Lifetime::kResident);
  const int b = declare(program, "b", Lifetime::kResident);
  LifetimeTracker tracker(program);
  tracker.next(transfer({value(a)}, {value(b)}, 1), kNoLoops);
  EXPECT_THAT(tracker.next(touch({}, {}, {value(a, -1), value(a, 5)}), kNoLoops).wait_for,
              IsEmpty());
  EXPECT_THAT(tracker.next(touch({}, {}, {value(a)}), kNoLoops).wait_for, ElementsAre(0));
  EXPECT_THROW(tracker.next(touch({value(a, 1)}, {}), kNoLoops), InternalError);
}

TEST(Lifetime, FreeIsDelayedWhileATransferMayRead) {
  Program program = empty_program();
  const int full = declare(program, "G", Lifetime::kTransient, 2);
  const int g = declare(program, "g", Lifetime::kResident, 2);
  LifetimeTracker tracker(program);
  EXPECT_THAT(tracker.next(touch({}, {value(full, 0)}), kNoLoops).allocate, ElementsAre(0));
  tracker.next(transfer({value(full, 0)}, {value(g, 0)}, 2), kNoLoops);
  EXPECT_THAT(tracker.next(release(value(full, 0)), kNoLoops).release_after, IsEmpty());
  EXPECT_THAT(tracker.next(touch({}, {value(full, 1)}), kNoLoops).release_before, IsEmpty());
  const StepPlan plan = tracker.next(touch({value(full, 1)}, {}, {value(full, 0)}), kNoLoops);
  EXPECT_THAT(plan.wait_for, ElementsAre(0));
  EXPECT_THAT(plan.release_before, ElementsAre(0));
  EXPECT_THAT(tracker.next(release(value(full, 1)), kNoLoops).release_after, ElementsAre(1));
}

TEST(Lifetime, RewrittenBeforeItsReleaseKeepsItsMemory) {
  Program program = empty_program();
  const int full = declare(program, "G", Lifetime::kTransient);
  const int g = declare(program, "g", Lifetime::kResident);
  LifetimeTracker tracker(program);
  tracker.next(touch({}, {value(full)}), kNoLoops);
  tracker.next(transfer({value(full)}, {value(g)}, 1), kNoLoops);
  tracker.next(release(value(full)), kNoLoops);
  const StepPlan again = tracker.next(transfer({value(g)}, {value(full)}, 2), kNoLoops);
  EXPECT_THAT(again.allocate, IsEmpty());
  EXPECT_THAT(again.after, ElementsAre(0));
  EXPECT_THAT(tracker.next(release(value(full)), kNoLoops).release_after, IsEmpty());
  const FinishPlan& finish = tracker.finish();
  EXPECT_THAT(finish.release, ElementsAre(0)) << "once";
}

TEST(Lifetime, CarriesCrossPrograms) {
  Program program = empty_program();
  const int w = declare(program, "w", Lifetime::kCarry, 2);
  const int other = declare(program, "other", Lifetime::kResident);
  LifetimeTracker tracker(program);
  tracker.begin({0, 1});
  EXPECT_THAT(tracker.next(touch({value(w, 0)}, {}), kNoLoops).carries, ElementsAre(0));
  EXPECT_THAT(tracker.next(touch({value(w, 0)}, {}), kNoLoops).carries, IsEmpty()) << "waited for";
  EXPECT_THAT(tracker.next(transfer({value(w, 1)}, {value(other)}, 1), kNoLoops).carries,
              ElementsAre(1));
  EXPECT_THAT(tracker.next(transfer({value(w, 1)}, {value(w, 1)}, 2), kNoLoops).carries,
              ElementsAre(1));
  const StepPlan last = tracker.next(transfer({value(other)}, {value(w, 0)}, 2), kNoLoops);
  EXPECT_EQ(last.previous, 1);
  EXPECT_THAT(last.after, IsEmpty()) << "op 1 was started after op 0";
  const FinishPlan& finish = tracker.finish();
  EXPECT_THAT(finish.wait_for, ElementsAre(0));
  EXPECT_THAT(finish.outstanding, ElementsAre(Pair(1, 1), Pair(1, 1), Pair(2, 2), Pair(0, 2)));
}

TEST(Lifetime, CarryThatUsesATransientValueIsWaitedFor) {
  Program program = empty_program();
  const int mean = declare(program, "mean", Lifetime::kCarryOut);
  const int snap = declare(program, "snap", Lifetime::kTransient);
  LifetimeTracker tracker(program);
  tracker.next(touch({}, {value(snap)}), kNoLoops);
  tracker.next(transfer({value(snap)}, {value(mean)}, 1), kNoLoops);
  tracker.next(release(value(snap)), kNoLoops);
  EXPECT_THAT(tracker.finish().wait_for, ElementsAre(0));
  EXPECT_THAT(tracker.finish().outstanding, IsEmpty());
}

TEST(Lifetime, ManyTransfersAtOnce) {
  Program program = empty_program();
  const int64_t count = 1000;
  const int a = declare(program, "a", Lifetime::kResident, count);
  LifetimeTracker tracker(program);
  for (int64_t k = 0; k < count; ++k) {
    tracker.next(transfer({value(a, k)}, {value(a, k)}, 1 + static_cast<int>(k % 2)), kNoLoops);
  }
  EXPECT_EQ(tracker.oldest_unknown(), 0);
  EXPECT_THAT(tracker.next(touch({value(a, 777)}, {}), kNoLoops).wait_for, ElementsAre(777));
  EXPECT_TRUE(tracker.known_ended(775));
  EXPECT_FALSE(tracker.known_ended(778));
  EXPECT_FALSE(tracker.known_ended(776)) << "the other stream";
  EXPECT_THAT(tracker.finish().wait_for, ElementsAre(998, 999));
}

TEST(Memory, PeakFollowsTheRules) {
  Program program = empty_program();
  const int state = declare(program, "state", Lifetime::kResident, 2, 7);
  const int full = declare(program, "G", Lifetime::kTransient, 4, 100);
  program.arrays[state].category = Category::kOptimizer;
  program.arrays[full].category = Category::kGradients;
  EXPECT_EQ(resident_memory(program, 0).total(), 14);
  // Each G is reduced in the background; G[k] waits for the reduction of G[k - 2]: at most two
  // alive.
  for (int64_t k = 0; k < 4; ++k) {
    program.body.emplace_back(touch({}, {value(full, k)}, {value(full, k - 2)}));
    program.body.emplace_back(transfer({value(full, k)}, {value(state, k % 2)}, 1));
    program.body.emplace_back(release(value(full, k)));
  }
  MemoryUse peak = peak_memory(program, 0);
  EXPECT_EQ(peak.optimizer, 14);
  EXPECT_EQ(peak.gradients, 200);
  EXPECT_EQ(peak.total(), 214);
  for (Node& node : program.body) std::get<Op>(node).waits.clear();
  EXPECT_EQ(peak_memory(program, 0).gradients, 400) << "nothing bounds the buffers";

  std::get<Op>(program.body[3]) = work_op(kForward, {}, {}, {value(full, 1)});
  std::get<Op>(program.body[3]).attributes[kWorkspace] = int64_t{5000};
  peak = peak_memory(program, 0);
  EXPECT_EQ(peak.buffers, 5000);
  EXPECT_EQ(peak.gradients, 200);
}

TEST(Memory, WorkspaceOfAKernelLivesWhileItRuns) {
  Program program = empty_program();
  const int a = declare(program, "a", Lifetime::kResident, 2, 1);
  Op first = work_op(kForward, {}, {}, {value(a, 0)});
  first.attributes[kWorkspace] = int64_t{10};
  Op second = work_op(kBackward, {}, {}, {value(a, 1)});
  second.attributes[kWorkspace] = int64_t{20};
  program.body = {first, second, first};
  EXPECT_EQ(peak_memory(program, 0).buffers, 22);
  program.body = {first};
  EXPECT_EQ(peak_memory(program, 0).buffers, 12);
}

TEST(Memory, TiersMakeUpTheTotal) {
  Program program = empty_program();
  const int state = declare(program, "state", Lifetime::kResident, 2, 7);
  const int tokens = declare(program, "tokens", Lifetime::kTransient, 1, 50);
  program.arrays[tokens].tier = Tier::kHost;
  Op op = work_op(kForward, {}, {value(state, 0)}, {value(tokens, 0)});
  op.attributes[kWorkspace] = int64_t{5};
  program.body = {op, release(value(tokens, 0))};
  EXPECT_EQ(resident_memory(program, 0).host, 0);
  const Json json = to_json(peak_memory(program, 0));
  EXPECT_EQ(json.at("total").as_integer(), 14 + 50 + 5);
  EXPECT_EQ(json.at("tiers").dump(),
            Json::object({{"device", 14 + 5}, {"host", 50}, {"disk", 0}}).dump());
}

TEST(Memory, PartsDependOnTheRank) {
  Program program = empty_program();
  const int w = declare(program, "w", Lifetime::kResident);
  program.arrays[w].partition = {10, 6};
  program.arrays[w].group = 0;
  EXPECT_EQ(resident_memory(program, 0).total(), 6);
  EXPECT_EQ(resident_memory(program, 1).total(), 4);
}

TEST(Lifetime, CostsLittlePerOperation) {
  Program program = empty_program();
  const int w = declare(program, "w", Lifetime::kResident, 64);
  const int gathered = declare(program, "W", Lifetime::kTransient, 65);
  Repeat repeat;
  repeat.loop = program.num_loops++;
  repeat.count = 64;
  const auto here = [&](int array, int64_t constant) { return at(array, constant, repeat.loop); };
  repeat.body.emplace_back(transfer({here(w, 0)}, {here(gathered, 0)}, 1, {here(gathered, -2)}));
  repeat.body.emplace_back(touch({here(gathered, 0)}, {updated(here(w, 0))}));
  repeat.body.emplace_back(release(here(gathered, 0)));
  program.body.emplace_back(repeat);
  LifetimeTracker tracker(program);
  double best = 1;
  int64_t waits = 0;
  for (int trial = 0; trial < 50; ++trial) {
    tracker.begin();
    const auto start = std::chrono::steady_clock::now();
    for_each_instance(program, [&](const Op& op, const std::vector<int64_t>& loops) {
      waits += static_cast<int64_t>(tracker.next(op, loops).wait_for.size());
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / static_cast<double>(count_instances(program)));
  }
  EXPECT_EQ(waits, 50 * 64);
  RecordProperty("nanoseconds_per_op", static_cast<int>(best * 1e9));
  EXPECT_LT(best, 0.5e-6 * test::kSlowdown);  // a quarter of the interpreter's 2 microseconds
}

}  // namespace
}  // namespace strait::program
