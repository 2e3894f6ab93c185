// Updates and borders in the backward pass: the same operations as behind it, those that depend on
// each other in the same order, each as early as it may be.
#include "strait/strategy/hoist/hoist.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "strait/config/parse.h"
#include "strait/program/roll.h"
#include "strait/strategy/compose/design.h"
#include "strait/strategy/finish/kernels.h"
#include "strait/strategy/fuse/fuse.h"
#include "strait/strategy/sync/kernels.h"
#include "tests/program/program_builder.h"
#include "tests/strategy/passes.h"

namespace strait::strategy {
namespace {

using program::Node;
using program::Op;
using program::Operand;
using program::Program;
using Sets = std::vector<std::string>;

Design design_of(const Sets& more, int64_t ranks = 2, bool in_backward = true) {
  Sets sets = {"model.preset=nano-char", "train.clip_norm=0", "train.global_batch_size=8",
               "train.steps=100",
               in_backward ? "optimizer.in_backward=true" : "optimizer.in_backward=false"};
  sets.insert(sets.end(), more.begin(), more.end());
  return make_design(parse_run("", "test.toml", sets), ranks, 65);
}

std::vector<Op> ops_of(const Program& program) {
  std::vector<Op> ops;
  for (const Node& node : program::unroll(program).body) ops.push_back(std::get<Op>(node));
  return ops;
}

bool touches(const std::vector<Operand>& operands, const Operand& value) {
  return std::ranges::any_of(operands, [&](const Operand& operand) {
    return operand.array == value.array && operand.index.constant == value.index.constant;
  });
}

/// Whether a change of places would change a value, or what an op waits for.
bool conflict(const Op& a, const Op& b) {
  const auto changes = [](const Op& one, const Op& other) {
    return std::ranges::any_of(one.writes, [&](const Operand& written) {
      return touches(other.reads, written) || touches(other.writes, written) ||
             touches(other.waits, written);
    });
  };
  return changes(a, b) || changes(b, a);
}

/// Numbers of the ops of `early` in `late`: equal ones in their order.
std::vector<size_t> places_in(const std::vector<Op>& late, const std::vector<Op>& early) {
  std::vector<bool> taken(late.size(), false);
  std::vector<size_t> places;
  for (const Op& op : early) {
    size_t at = 0;
    while (at < late.size() && (taken[at] || !(late[at] == op))) ++at;
    EXPECT_LT(at, late.size()) << "an operation that was not there";
    if (at == late.size()) return {};
    taken[at] = true;
    places.push_back(at);
  }
  return places;
}

void expect_same_work(const Program& late_program, const Program& early_program) {
  const std::vector<Op> late = ops_of(late_program), early = ops_of(early_program);
  ASSERT_EQ(late.size(), early.size());
  const std::vector<size_t> places = places_in(late, early);
  ASSERT_EQ(places.size(), early.size());
  EXPECT_FALSE(std::ranges::is_sorted(places)) << "nothing has moved";
  for (size_t i = 0; i < places.size(); ++i) {
    for (size_t j = i + 1; j < places.size(); ++j) {
      if (places[i] > places[j]) {
        EXPECT_FALSE(conflict(early[i], early[j]));
      }
    }
  }
}

/// What `hoist` gets: the passes before it, and the border where there is one.
Program late_program(const Design& design, std::optional<Border> border) {
  const Ingredients from{design.layout.local_shape(), design.placement, design.cluster, design.mesh,
                         design.policy};
  StepOptions options;
  options.micro_batch_size = design.batch.micro_batch_size;
  options.tokens = design.run.model.shape.context;
  options.accumulation = design.batch.accumulation;
  options.optimizer = {{"m", "first_moment"}, {"v", "second_moment"}};
  options.in_backward = true;
  options.local_steps = design.policy.local_steps();
  return test::compose_with(
      from, options, "steady", [&](draft::Draft& draft) { fuse(draft, from.shape, options); },
      [&](draft::Draft& draft) {
        if (border) synchronise(draft, from.shape, from.cluster, from.policy, *border);
      });
}

TEST(Hoist, StepsDoTheSameWorkInAnOrderThatChangesNothing) {
  for (const char* preset : {"ddp", "zero1", "zero2", "zero3"}) {
    for (const char* micro : {"1", "2", "4"}) {
      SCOPED_TRACE(std::string(preset) + ", " + micro);
      const Design design = design_of({std::string("placement.preset=") + preset,
                                       std::string("train.micro_batch_size=") + micro});
      expect_same_work(late_program(design, {}), design.steady().front());
    }
  }
}

TEST(Hoist, BordersStartInTheStep) {
  const Sets streaming = {"sync.policy=streaming-diloco", "sync.rounds.period_steps=12",
                          "sync.rounds.fragments=2", "sync.rounds.delay_steps=1"};
  const Design design = design_of(streaming);
  for (const int64_t fragment : {0, 1}) {
    const Border launch{BorderPart::kLaunch, fragment};
    const program::StepKind& kind = *design.programs.find(border_kind(launch));
    expect_same_work(late_program(design, launch), kind.classes.front());
  }
}

/// What comes right behind the last visit of a block in the backward pass of one rank.
std::vector<std::string> names_behind_backward(const Program& program) {
  const std::vector<Op> ops = ops_of(program);
  std::vector<std::string> names;
  bool backward = false;
  for (const Op& op : ops) {
    const std::string name = program::op_name(op);
    if (name == "free") continue;
    backward = backward || name == "backward";
    if (backward) names.push_back(name);
  }
  return names;
}

/// Elements that the writes of the ops name, in order.
std::vector<int64_t> order_of(const Program& program) {
  std::vector<int64_t> order;
  for (const Op& op : ops_of(program)) order.push_back(op.writes.front().index.constant);
  return order;
}

/// One operation of the tail behind three of the head, which write the elements 0, 1 and 2.
std::vector<int64_t> hoisted(const Op& tail) {
  program::ProgramBuilder b(1);
  const int v = b.array("v", 8, program::Lifetime::kResident, 4);
  b.touch({{v, {5}}}, {{v, {0}}});
  b.touch({{v, {6}}}, {{v, {1}}}).waits = {{v, {7}}};
  b.touch({}, {{v, {2}}});
  b.add(tail);
  Program program = b.take();
  hoist(program, 3);
  return order_of(program);
}

TEST(Hoist, AnOperationStopsBehindWhatItDependsOn) {
  const auto touch = [](std::vector<Operand> reads, std::vector<Operand> writes) {
    for (Operand& operand : writes) operand.access = program::Access::kWrite;
    return program::touch_op(std::move(reads), std::move(writes));
  };
  using Order = std::vector<int64_t>;
  EXPECT_EQ(hoisted(touch({}, {{0, {4}}})), Order({4, 0, 1, 2})) << "nothing";
  EXPECT_EQ(hoisted(touch({{0, {0}}}, {{0, {4}}})), Order({0, 4, 1, 2})) << "a writer";
  EXPECT_EQ(hoisted(touch({{0, {6}}}, {{0, {4}}})), Order({4, 0, 1, 2})) << "reads alike";
  EXPECT_EQ(hoisted(touch({}, {{0, {5}}})), Order({0, 5, 1, 2})) << "a reader";
  EXPECT_EQ(hoisted(touch({}, {{0, {7}}})), Order({0, 1, 7, 2})) << "one that waits for it";
  EXPECT_EQ(hoisted(touch({}, {{0, {2}}})), Order({0, 1, 2, 2})) << "another writer";
}

TEST(Hoist, OneRankUpdatesEachUnitBehindItsBackward) {
  const Design design = design_of({}, 1);
  const std::vector<std::string> names = names_behind_backward(design.steady().front());
  const auto first_update = std::ranges::find(names, "update");
  const auto last_backward = std::find(names.rbegin(), names.rend(), "backward").base();
  EXPECT_LT(first_update, last_backward);
  // A block's norm and update stand between two backwards.
  int64_t between = 0;
  for (size_t at = 0; at + 1 < names.size(); ++at) between += names[at] == "update";
  EXPECT_EQ(between, static_cast<int64_t>(design.shape.units.size()));
  EXPECT_EQ(std::count(last_backward, names.end(), "update"), 1) << "that of the embedding";
}

TEST(Hoist, OuterGradientsLeaveBehindTheirUpdate) {
  const Design design = design_of({"sync.policy=diloco", "sync.rounds.period_steps=10"});
  const program::StepKind& kind = *design.programs.find("border-0");
  const std::vector<Op> ops = ops_of(kind.classes.front());
  const auto place = [&](const std::string& name, bool first) {
    int64_t found = -1;
    for (size_t at = 0; at < ops.size(); ++at)
      if (program::op_name(ops[at]) == name && (found < 0 || !first))
        found = static_cast<int64_t>(at);
    return found;
  };
  EXPECT_LT(place("outer_gradient", true), place("backward", false));
  EXPECT_LT(place("all_reduce", true), place("backward", false));
  EXPECT_GT(place("outer_step", true), place("outer_gradient", false))
      << "what waits for a transfer stays behind";
}

TEST(Hoist, WhereGradientsTravelUpdatesFollowAtADistance) {
  const Design design = design_of({"placement.preset=ddp"});
  const std::vector<Op> ops = ops_of(design.steady().front());
  std::vector<std::pair<size_t, Operand>> reductions;
  int late = 0;  // behind all transfers
  for (size_t at = 0; at < ops.size(); ++at) {
    if (ops[at].kind == program::OpKind::kAllReduce) {
      reductions.emplace_back(at, ops[at].writes.front());
      continue;
    }
    if (ops[at].kernel != &kUpdate) continue;
    const Operand& gradient = *program::operand_in(ops[at].reads, kUpdateGradient);
    size_t later = 0;
    bool seen = false;
    for (const auto& [place, value] : reductions) {
      later += seen;
      seen = seen ||
             (value.array == gradient.array && value.index.constant == gradient.index.constant);
    }
    EXPECT_TRUE(seen);
    late += later < 2;
  }
  EXPECT_LE(late, 2) << "of units with less than two transfers behind their own";
}

}  // namespace
}  // namespace strait::strategy
