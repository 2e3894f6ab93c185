// The verifier and the tracker against the plain reference, on random and on mutated programs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "strait/program/lifetime.h"
#include "strait/program/roll.h"
#include "strait/verify/counters.h"
#include "strait/verify/verify.h"
#include "tests/program/example_programs.h"
#include "tests/program/random_set.h"
#include "tests/verify/reference_check.h"

namespace strait::program {
namespace {

std::string first_problem(const std::vector<Program>& classes) {
  const std::vector<Problem> problems = verify(classes);
  return problems.empty() ? "" : problems[0].kind + ": " + problems[0].message;
}

int64_t world_of(uint64_t seed) { return std::vector<int64_t>{1, 2, 3, 4, 6, 8}[seed % 6]; }

/// What generators must not quietly lose.
struct Contents {
  int64_t instances = 0, messages = 0, loops = 0, listed = 0, counted = 0, classes = 0, carried = 0;

  void add(const Program& program) {
    loops += program.num_loops;
    listed += !program.groups.back().lists.empty();
    LifetimeTracker tracker(program);
    for_each_instance(program, [&](const Op& op, const Loops& loop_values) {
      ++instances;
      messages += op.kind == OpKind::kSend || op.kind == OpKind::kReceive;
      tracker.next(op, loop_values);
    });
    carried += !tracker.finish().outstanding.empty();
  }
  void add(const StepKind& kind) {
    counted += counter_period(kind.classes) != CounterPeriod{};
    classes += kind.classes.size() > 1;
    for (const Program& program : kind.classes) add(program);
  }
};

TEST(RandomSets, TenThousandAreLegal) {
  Contents contents;
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    const RandomSet set = random_set(seed, world_of(seed));
    const std::vector<Problem> problems = verify(set.programs);
    ASSERT_TRUE(problems.empty()) << "seed " << seed << ": " << problems[0].kind << ": "
                                  << problems[0].message;
    for (const StepKind& kind : set.programs.kinds) contents.add(kind);
  }
  EXPECT_GT(contents.instances, 400000);
  EXPECT_GT(contents.messages, 10000);
  EXPECT_GT(contents.loops, 10000);
  EXPECT_GT(contents.classes, 5000) << "kinds of several classes";
  EXPECT_GT(contents.counted, 5000) << "kinds with counters";
  EXPECT_GT(contents.listed, 5000) << "programs with groups that list their members";
  EXPECT_GT(contents.carried, 5000) << "programs that leave transfers under way";
}

TEST(RandomSets, ReferenceAgreesAtEveryValueOfTheCounters) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (const StepKind& kind : random_set(seed, world_of(seed)).programs.kinds) {
      const CounterPeriod period = counter_period(kind.classes);
      for (int64_t step = 0; step < period.steps; ++step)
        for (int64_t round = 0; round < period.rounds; ++round)
          ASSERT_EQ(reference_check(at_counters(kind.classes, {step, round})), "")
              << "seed " << seed << ", step " << step << ", round " << round;
    }
  }
}

TEST(RandomPrograms, ReferenceAgrees) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    ASSERT_EQ(reference_check(random_program(seed, world_of(seed))), "") << "seed " << seed;
  }
}

TEST(RandomPrograms, SameSeedSameProgram) {
  EXPECT_EQ(random_program(7, 4), random_program(7, 4));
  EXPECT_NE(random_program(7, 4), random_program(8, 4));
  EXPECT_EQ(random_set(7, 4).programs.kinds[0].classes, random_set(7, 4).programs.kinds[0].classes);
}

/// Every list of nodes of a program, bodies included.
void bodies(std::vector<Node>& nodes, std::vector<std::vector<Node>*>& found) {
  found.push_back(&nodes);
  for (Node& node : nodes) {
    if (Repeat* repeat = std::get_if<Repeat>(&node)) bodies(repeat->body, found);
  }
}

enum class Mutation { kDelete, kDouble, kSwap };

/// Mutates the `which`-th node of a class, in order of bodies; false when there is none.
bool mutate(Program& program, size_t which, Mutation mutation) {
  std::vector<std::vector<Node>*> lists;
  bodies(program.body, lists);
  for (std::vector<Node>* list : lists) {
    if (which >= list->size()) {
      which -= list->size();
      continue;
    }
    const auto at = list->begin() + static_cast<std::ptrdiff_t>(which);
    if (mutation == Mutation::kDelete) list->erase(at);
    if (mutation == Mutation::kDouble && std::holds_alternative<Op>(*at))
      list->insert(at, Node(*at));
    if (mutation == Mutation::kSwap && at + 1 != list->end()) std::iter_swap(at, at + 1);
    return true;
  }
  return false;
}

struct Tally {
  int64_t refused = 0, accepted = 0;
  std::map<std::string, int64_t> kinds;
};

/// All single mutations of `rank_class`: the verifier refuses exactly what the reference refuses.
void try_mutations(const std::vector<Program>& legal, size_t rank_class, Tally& tally) {
  for (const Mutation mutation : {Mutation::kDelete, Mutation::kDouble, Mutation::kSwap}) {
    for (size_t which = 0;; ++which) {
      std::vector<Program> classes = legal;
      if (!mutate(classes[rank_class], which, mutation)) break;
      const std::vector<Problem> problems = verify(classes);
      const std::string reference = reference_check(classes);
      ASSERT_EQ(problems.empty(), reference.empty())
          << "mutation " << static_cast<int>(mutation) << " of node " << which
          << ", reference: " << reference << ", verifier: " << first_problem(classes) << "\n"
          << print(classes[rank_class]);
      ++(problems.empty() ? tally.accepted : tally.refused);
      if (!problems.empty()) ++tally.kinds[problems[0].kind];
    }
  }
}

TEST(Mutations, OfExamplesAreJudgedAsByTheReference) {
  Tally tally;
  try_mutations(split_program(2, 3, 2), 0, tally);
  try_mutations(carry_program(2), 0, tally);
  for (const size_t rank_class : {0, 1}) try_mutations(stage_program(2, 3), rank_class, tally);
  std::vector<Program> two = split_program(2, 2, 1);
  two.push_back(two[0]);
  two[0].members = {0};
  two[1].members = {1};
  for (const size_t rank_class : {0, 1}) try_mutations(two, rank_class, tally);
  EXPECT_GT(tally.refused, 100);
  EXPECT_GT(tally.accepted, 20);
  for (const char* kind : {"read-before-write", "use-after-free", "not-freed", "double-free",
                           "unmatched-message", "collective-order"}) {
    EXPECT_GT(tally.kinds[kind], 0) << kind;
  }
}

TEST(Mutations, OfRandomProgramsAreJudgedAsByTheReference) {
  Tally tally;
  for (uint64_t seed = 0; seed < 250; ++seed) {
    const std::vector<Program> legal =
        random_program(seed, std::vector<int64_t>{2, 3, 4}[seed % 3]);
    try_mutations(legal, seed % legal.size(), tally);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(tally.refused, 3000);
  EXPECT_GT(tally.accepted, 3000);
  for (const char* kind : {"read-before-write", "use-after-free", "not-freed", "double-free",
                           "unmatched-message", "collective-order", "cycle", "concurrent-write"}) {
    EXPECT_GT(tally.kinds[kind], 0) << kind;
  }
}

/// Says of the nth update of the program that it reads and writes; false when there is none.
bool split_update(std::vector<Node>& nodes, int& nth) {
  for (Node& node : nodes) {
    Op* op = std::get_if<Op>(&node);
    if (op == nullptr) {
      if (split_update(std::get<Repeat>(node).body, nth)) return true;
      continue;
    }
    for (Operand& operand : op->writes) {
      if (operand.access != Access::kUpdate || nth-- > 0) continue;
      op->reads.push_back(as(operand, Access::kRead));
      operand.access = Access::kWrite;
      return true;
    }
  }
  return false;
}

TEST(Mutations, AKernelThatReadsAndWritesOneValueMustSayThatItUpdatesIt) {
  int64_t tried = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    for (int nth = 0;; ++nth) {
      std::vector<Program> classes = random_program(seed, world_of(seed));
      int left = nth;
      if (!split_update(classes[0].body, left)) break;
      ++tried;
      ASSERT_EQ(first_problem(classes).substr(0, 17), "concurrent-write:") << "seed " << seed;
      ASSERT_EQ(reference_check(classes), "read while written") << "seed " << seed;
    }
  }
  EXPECT_GT(tried, 300);
}

TEST(Mutations, TheLastFreeOfEveryRandomProgramIsNeeded) {
  int64_t tried = 0;
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    std::vector<Program> classes = random_program(seed, world_of(seed));
    classes[0] = unroll(classes[0]);
    std::vector<Node>& body = classes[0].body;
    const auto last = std::find_if(body.rbegin(), body.rend(), [](const Node& node) {
      return std::get<Op>(node).kind == OpKind::kFree;
    });
    if (last == body.rend()) continue;
    body.erase(last.base() - 1);
    ++tried;
    ASSERT_EQ(first_problem(classes).substr(0, 10), "not-freed:") << "seed " << seed;
  }
  EXPECT_GT(tried, 8000);
}

/// What the tracker's plans order, as a closure like the reference's.
struct PlanOrder {
  std::vector<std::vector<char>> before;
  std::vector<std::vector<int64_t>> released;  // slots released before or after each op
  std::vector<int64_t> released_at_end;
};

PlanOrder plan_order(const ReferenceOrder& reference, LifetimeTracker& tracker) {
  const size_t count = reference.ops.size();
  PlanOrder order;
  order.before.assign(count, std::vector<char>(count, 0));
  std::vector<size_t> transfers;  // op of each communication number
  const std::vector<int64_t> no_loops;
  for (size_t j = 0; j < count; ++j) {
    const StepPlan& plan = tracker.next(reference.ops[j], no_loops);
    std::vector<size_t> direct;
    for (const int64_t number : plan.wait_for) direct.push_back(transfers[number]);
    for (const int64_t number : plan.after) direct.push_back(transfers[number]);
    if (plan.previous >= 0) direct.push_back(transfers[plan.previous]);
    for (size_t i = 0; i < j; ++i) {
      if (!is_communication(reference.ops[i].kind)) direct.push_back(i);
    }
    for (const size_t k : direct) {
      order.before[k][j] = 1;
      for (size_t i = 0; i < k; ++i) order.before[i][j] |= order.before[i][k];
    }
    order.released.push_back(plan.release_before);
    order.released.back().insert(order.released.back().end(), plan.release_after.begin(),
                                 plan.release_after.end());
    if (plan.communication >= 0) transfers.push_back(j);
  }
  order.released_at_end = tracker.finish().release;
  return order;
}

/// Releases as memory.h states them: (op or -1 for the end, slot).
std::vector<std::pair<int64_t, int64_t>> expected_releases(const ReferenceOrder& reference,
                                                           const SlotMap& slots) {
  std::vector<std::pair<int64_t, int64_t>> releases;
  const size_t count = reference.ops.size();
  for (size_t f = 0; f < count; ++f) {
    if (reference.ops[f].kind != OpKind::kFree) continue;
    for (const Operand& operand : reference.ops[f].writes) {
      const int64_t index = operand.index.constant;
      int64_t when = -1;
      bool rewritten = false;
      for (size_t j = f; j < count && when < 0 && !rewritten; ++j) {
        const Op& op = reference.ops[j];
        bool all = !is_communication(op.kind);
        for (size_t i = 0; i < f; ++i) {
          if (touches(reference.ops[i], operand.array, index)) all = all && reference.before[i][j];
        }
        if (all) when = static_cast<int64_t>(j);
        rewritten = !all && j > f && touches(op, operand.array, index);
      }
      if (!rewritten) releases.emplace_back(when, slots.slot(operand.array, index));
    }
  }
  std::sort(releases.begin(), releases.end());
  return releases;
}

TEST(Tracker, OrdersAndReleasesExactlyAsTheRulesSay) {
  int64_t delayed = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const Program program = unroll(random_program(seed, world_of(seed))[0]);
    const ReferenceOrder reference = reference_order(program);
    LifetimeTracker tracker(program);
    const PlanOrder order = plan_order(reference, tracker);
    ASSERT_EQ(order.before, reference.before) << "seed " << seed << "\n" << print(program);
    std::vector<std::pair<int64_t, int64_t>> releases;
    for (size_t j = 0; j < order.released.size(); ++j) {
      for (const int64_t slot : order.released[j]) {
        releases.emplace_back(static_cast<int64_t>(j), slot);
        delayed += reference.ops[j].kind != OpKind::kFree;
      }
    }
    for (const int64_t slot : order.released_at_end) releases.emplace_back(-1, slot);
    std::sort(releases.begin(), releases.end());
    ASSERT_EQ(releases, expected_releases(reference, tracker.slots())) << "seed " << seed << "\n"
                                                                       << print(program);
  }
  EXPECT_GT(delayed, 100);
}

}  // namespace
}  // namespace strait::program
