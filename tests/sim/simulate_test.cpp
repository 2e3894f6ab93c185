// Times that can be reckoned by hand: what transfers take of the processors, what codecs cost.
#include "strait/sim/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "strait/base/errors.h"
#include "strait/config/parse.h"
#include "strait/cost/cost.h"
#include "strait/sim/lanes.h"
#include "strait/strategy/compose/design.h"
#include "strait/strategy/sharding/kernels.h"
#include "tests/program/program_builder.h"

namespace strait {
namespace {

constexpr double kTolerance = 1e-12;  // seconds; a few roundings of numbers near 1

sim::Flight flight(int64_t level, double latency, double work) {
  sim::Flight one;
  one.level = level;
  one.latency_seconds = latency;
  one.work_seconds = work;
  return one;
}

/// One rank on its lanes.
class Rank {
 public:
  explicit Rank(int64_t streams, std::vector<double> shares = {})
      : lanes_(1, streams, std::move(shares)) {}
  int64_t issue(int stream, const sim::Flight& flight) {
    const int64_t number = lanes_.open(flight);
    lanes_.arrive(number, {0, stream});
    return number;
  }
  void compute(double seconds) {
    lanes_.compute(0, seconds);
    while (!lanes_.idle(0)) lanes_.advance();
  }
  void await(int64_t number) {
    lanes_.await(0, number);
    while (!lanes_.idle(0)) lanes_.advance();
  }
  double now() const { return lanes_.now(); }
  const sim::Flight& flight(int64_t number) const { return lanes_.flight(number); }

 private:
  sim::Lanes lanes_;
};

TEST(Lanes, ComputingIsSlowedWhileItsLevelIsBusy) {
  Rank lanes(3, {0.25, 0.5});
  lanes.compute(1.0);  // nothing under way
  EXPECT_NEAR(lanes.now(), 1.0, kTolerance);
  lanes.issue(1, flight(1, 0.5, 1.0));
  // Half a second of latency costs nothing; the second of work halves the pace; then it is whole
  // again.
  lanes.compute(2.0);
  EXPECT_NEAR(lanes.flight(0).landed, 2.5, kTolerance);
  EXPECT_NEAR(lanes.now(), 1.0 + 0.5 + 1.0 + 1.0, kTolerance);
  // Two levels at once take both shares; two lanes of one level take one.
  lanes.issue(0, flight(0, 0, 10.0));
  lanes.issue(1, flight(1, 0, 5.0));
  lanes.issue(2, flight(1, 0, 5.0));
  lanes.compute(0.5);
  EXPECT_NEAR(lanes.now(), 3.5 + 0.5 / 0.25, kTolerance);
}

/// Four ranks on two cores, the second standing for two of them.
TEST(Lanes, RanksOfAMachineTakeTurnsOnItsCores) {
  sim::Machines machines;
  machines.of_actor = {0, 0, 0};
  machines.ranks = {{{0, 1}, {1, 2}, {2, 1}}};
  machines.all = 4;
  machines.alone_speed = 2;
  sim::Lanes lanes(3, 1, {0.5}, machines);
  lanes.compute(0, 1.0);
  lanes.compute(1, 2.0);
  lanes.compute(2, 3.0);
  lanes.advance();  // four compute, at pace 1
  EXPECT_NEAR(lanes.now(), 1.0, kTolerance);
  lanes.advance();  // three: the rest of the second takes 3/4 of a second
  EXPECT_NEAR(lanes.now(), 1.75, kTolerance);
  lanes.advance();  // the last alone: of its 3 seconds one has passed at 1, one at 4/3
  EXPECT_NEAR(lanes.now(), 2.25, kTolerance);
  // Transfers of the idle ranks take half a rank's time each: three halves of four.
  const int64_t number = lanes.open(flight(0, 0, 10.0));
  lanes.arrive(number, {1, 0});
  const int64_t other = lanes.open(flight(0, 0, 10.0));
  lanes.arrive(other, {2, 0});
  lanes.compute(0, 1.0);
  lanes.compute(2, 1.0);
  lanes.advance();
  EXPECT_NEAR(lanes.now(), 2.25 + 1 / 1.25, kTolerance);
}

/// Three ranks of a group, of which two are alike, each send a message of a second to another
/// group.
TEST(Lanes, MessagesOfAGroupShareItsLinks) {
  for (const auto& [links, seconds] : {std::pair(1, 3.0), {2, 1.5}, {3, 1.0}, {4, 1.0}}) {
    sim::Uplinks uplinks;
    uplinks.of_actor = {0, 0, 1, 1};
    uplinks.ranks = {{{0, 2}, {1, 1}}, {{2, 2}, {3, 1}}};
    uplinks.links = links;
    for (const bool out : {true, false}) {
      sim::Lanes lanes(4, 1, {}, {}, {{}, uplinks});
      std::vector<int64_t> numbers;
      for (const int64_t actor : {0, 1}) {
        sim::Flight one = flight(1, 0, 1.0);
        one.sides = 2;
        numbers.push_back(lanes.open(one));
        lanes.arrive(numbers.back(), {actor, 0, out ? sim::Way::kOut : sim::Way::kIn});
        lanes.arrive(numbers.back(), {actor + 2, 0, out ? sim::Way::kIn : sim::Way::kOut});
      }
      lanes.advance();
      for (const int64_t number : numbers)
        EXPECT_NEAR(lanes.flight(number).landed, seconds, kTolerance) << links << " links";
    }
  }
}

/// Three messages of a second, half a second away. Asked for, each begins when the one before it
/// has been taken; unasked they pass one behind the other, also while their receiver computes.
TEST(Lanes, UnaskedMessagesPassWhileTheirReceiverTakesWhatCameBefore) {
  for (const bool unasked : {false, true})
    for (const double busy : {0.0, 2.0, 9.0}) {
      sim::Lanes lanes(2, 1);
      const auto wait = [&](int64_t actor) {
        while (!lanes.idle(actor)) lanes.advance();
      };
      std::vector<int64_t> numbers;
      for (int message = 0; message < 3; ++message) {
        sim::Flight one = flight(0, 0.5, 1.0);
        one.sides = 2;
        one.unasked = unasked;
        numbers.push_back(lanes.open(one));
        lanes.arrive(numbers.back(), {0, 0, sim::Way::kOut});
      }
      lanes.compute(1, busy);
      wait(1);
      for (const int64_t number : numbers) lanes.arrive(number, {1, 0, sim::Way::kIn});
      lanes.await(1, numbers.back());
      wait(1);
      for (int message = 0; message < 3; ++message) {
        const double asked = busy + 1.5 * (message + 1), there = 0.5 + 1.0 * (message + 1);
        EXPECT_NEAR(lanes.flight(numbers[static_cast<size_t>(message)]).landed,
                    unasked ? std::max(busy, there) : asked, kTolerance);
      }
    }
}

TEST(Lanes, TransfersNeverStarveComputing) {
  Rank lanes(2, {0.9, 0.9});
  lanes.issue(0, flight(0, 0, 100.0));
  lanes.issue(1, flight(1, 0, 100.0));
  lanes.compute(1.0);
  EXPECT_NEAR(lanes.now(), 20.0, 1e-9);
}

/// Whose end nobody looks for at once: the next one on the lane begins so much later, and whoever
/// waits idly sees it at once.
TEST(Lanes, TransfersEndLateBesideComputing) {
  sim::Flight one = flight(0, 0, 1.0);
  one.late_seconds = 0.25;
  Rank busy(1);
  for (int number = 0; number < 3; ++number) busy.issue(0, one);
  busy.compute(2.75);
  EXPECT_NEAR(busy.flight(0).landed, 1.25, kTolerance);
  EXPECT_NEAR(busy.flight(1).landed, 2.5, kTolerance);
  EXPECT_NEAR(busy.now(), 2.75, kTolerance) << "lateness takes nothing from computing";
  busy.await(2);
  EXPECT_NEAR(busy.flight(2).landed, 3.5, kTolerance);
}

TEST(Lanes, WithoutSharesComputingIgnoresTransfers) {
  Rank lanes(1);
  lanes.issue(0, flight(0, 0, 0.5));
  lanes.compute(2.0);
  EXPECT_NEAR(lanes.now(), 2.0, kTolerance);
  EXPECT_NEAR(lanes.flight(0).landed, 0.5, kTolerance);
}

strategy::Design design_on(double processor_share) {
  return strategy::make_design(
      parse_run("[model]\npreset = \"nano-char\"\n", "test.toml",
                {"placement.preset=zero++",
                 "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 10.0 }, { name = "
                 "\"world\", size = 0, gb_per_second = 0.02, latency_microseconds = 10.0, "
                 "processor_share = " +
                     std::to_string(processor_share) + " }]"}),
      4, 65);
}

TEST(Simulate, ABusyLevelThatTakesProcessorsMakesStepsLonger) {
  const strategy::Design idle = design_on(0.0), busy = design_on(0.5);
  const sim::Result without = sim::simulate(idle.steady().front(), idle.cluster);
  const sim::Result with = sim::simulate(busy.steady().front(), busy.cluster);
  EXPECT_GT(with.seconds, 1.001 * without.seconds);
  EXPECT_LT(with.seconds, without.seconds + without.compute_seconds);  // at half pace throughout
  EXPECT_EQ(with.level_bytes, without.level_bytes);
}

TEST(Simulate, EqualRanksThatTakeTurnsGainNothing) {
  strategy::Design design = design_on(0.0);
  const sim::Result own = sim::simulate(design.steady(), design.cluster);
  design.cluster.ranks_per_machine = 4;
  design.cluster.cores_per_machine = 2;
  const sim::Result shared = sim::simulate(design.steady(), design.cluster);
  EXPECT_NEAR(shared.seconds, own.seconds, 1e-9 * own.seconds);
  EXPECT_NEAR(shared.compute_seconds, own.compute_seconds, 1e-9 * own.seconds);
}

TEST(Simulate, TransfersOfWhatIsCarriedWaitBesideTheComputing) {
  Cluster cluster;
  cluster.ranks = 2;
  cluster.levels = {{"world", 2, 1e6, 0, 1}};
  cluster.flops_per_second_fp32 = 1;
  program::ProgramBuilder b(2);
  constexpr int64_t kElements = 500'000;
  const int mean = b.array("mean", 1, program::Lifetime::kCarry, kElements);
  const int copy = b.array("copy", 1, program::Lifetime::kResident, kElements);
  const int source = b.array("source", 1, program::Lifetime::kResident, kElements);
  const int state = b.array("state", 1, program::Lifetime::kResident, kElements);
  // 2 s each: the first program's last transfer ends in the second, the further one follows it,
  // both beside the 10 s.
  b.add(program::OpKind::kAllReduce, {program::at(mean)}, {program::at(copy)}, 2);
  program::Op& work = b.add(program::work_op(program::kForward, {}, {}, {program::at(state)}));
  work.attributes[program::kFlops] = 10.0;
  b.add(program::OpKind::kAllReduce, {program::at(source)}, {program::at(mean)}, 1);
  const program::Program program = b.take();
  const sim::Result result = sim::simulate(program, cluster);
  EXPECT_NEAR(result.exposed_seconds, 0, kTolerance);
  EXPECT_NEAR(result.seconds, 10, 1e-9);
}

TEST(Cost, CodecsAndBlocksHaveRatesOfTheirOwn) {
  strategy::Design design = design_on(0.0);
  const program::Program& step = design.steady().front();
  const double before = cost::price(step, design.cluster).compute_seconds;
  double coding = 0, blocks = 0;  // of that
  program::for_each_instance(step, [&](const program::Op& op, const std::vector<int64_t>&) {
    const program::KernelCost cost = program::cost_of(step, op, 0);
    const bool codes = op.kernel == &strategy::kEncode || op.kernel == &strategy::kDecode ||
                       op.kernel == &strategy::kDecodeSum;
    if (codes) coding += cost.bytes / design.cluster.memory_bytes_per_second;
    blocks += cost.flops / design.cluster.flops_per_second_fp32;
  });
  ASSERT_GT(coding, 0);
  design.cluster.codec_bytes_per_second = design.cluster.memory_bytes_per_second / 4;
  EXPECT_NEAR(cost::price(step, design.cluster).compute_seconds, before + 3 * coding,
              1e-9 * before);
  design.cluster.model_flops_per_second_fp32 = design.cluster.flops_per_second_fp32 / 2;
  EXPECT_NEAR(cost::price(step, design.cluster).compute_seconds, before + 3 * coding + blocks,
              1e-9 * before);
}

TEST(Simulate, RefusesLinksThatTheClusterLacks) {
  Cluster cluster;
  cluster.name = "one level";
  cluster.ranks = 2;
  cluster.levels = {{"world", 2, 1e9, 1e-6, 1}};
  const auto program = [](int64_t level, const std::string& resource) {
    program::ProgramBuilder builder(2);
    const int x = builder.array("x", 1, program::Lifetime::kResident, 10);
    builder.add(program::OpKind::kAllReduce, {program::at(x)}, {program::at(x)}, 1);
    program::Program made = builder.take();
    made.groups.front().level = level;
    made.streams[1].resource = resource;
    return made;
  };
  EXPECT_GT(sim::simulate(program(0, "world"), cluster).seconds, 0);
  EXPECT_THROW(sim::simulate(program(5, "world"), cluster), UserError);
  EXPECT_THROW(sim::simulate(program(0, "nowhere"), cluster), UserError);
}

}  // namespace
}  // namespace strait
