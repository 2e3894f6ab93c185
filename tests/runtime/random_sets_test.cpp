// 10,000 random legal sets of programs on thread ranks: none hangs, and all compute what a plain
// execution of one op after another computes, bit for bit.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "strait/runtime/runner.h"
#include "strait/verify/verify.h"
#include "tests/program/random_set.h"
#include "tests/runtime/reference_run.h"
#include "tests/runtime/thread_ranks.h"
#include "tests/sanitized.h"

namespace strait::runtime {
namespace {

using program::RandomSet;

double number_at(Dtype dtype, const void* data, int64_t element) {
  if (dtype == Dtype::kFloat64) return static_cast<const double*>(data)[element];
  return static_cast<double>(static_cast<const float*>(data)[element]);
}

void set_number(Dtype dtype, void* data, int64_t element, double value) {
  if (dtype == Dtype::kFloat64)
    static_cast<double*>(data)[element] = value;
  else
    static_cast<float*>(data)[element] = static_cast<float>(value);
}

Dtype dtype_of(const Instance& instance, const Bound& operand) {
  return instance.array(operand).dtype;
}

int64_t count_of(const Instance& instance, const Bound& operand) {
  return operand.bytes / dtype_bytes(dtype_of(instance, operand));
}

/// As the reference does it.
void touch(const Instance& instance) {
  for (const Bound& changed : instance.writes) {
    const Dtype dtype = dtype_of(instance, changed);
    for (int64_t e = 0; e < count_of(instance, changed); ++e) {
      double read = 0;
      for (const Bound& operand : instance.reads) {
        const int64_t count = count_of(instance, operand);
        if (count > 0) read += number_at(dtype_of(instance, operand), operand.data, e % count);
      }
      const double salt = static_cast<double>(instance.rank + 3 * changed.index + 1);
      const bool fresh = changed.access == program::Access::kWrite;
      const double before = fresh ? 0 : number_at(dtype, changed.data, e);
      set_number(dtype, changed.data, e, touched_number(changed.access, before, read, salt));
    }
  }
}

/// Where a rank's resident values differ from those of the reference; empty when nowhere.
std::string difference(State& state, const RandomSet& set, const ReferenceRun& reference) {
  for (const program::StepKind& kind : set.programs.kinds) {
    for (const program::ValueArray& array : program::class_of(kind.classes, state.rank()).arrays) {
      if (array.lifetime == program::Lifetime::kTransient || !state.has(array.name)) continue;
      const ResidentArray& values = state.array(array.name);
      for (int64_t k = 0; k < array.count; ++k) {
        const Numbers& expected = reference.residents(state.rank()).at({array.name, k});
        for (size_t e = 0; e < expected.size(); ++e) {
          const double found = number_at(array.dtype, values.buffers[static_cast<size_t>(k)],
                                         static_cast<int64_t>(e));
          if (found != expected[e])
            return array.name + "[" + std::to_string(k) + "], element " + std::to_string(e) + ": " +
                   std::to_string(found) + " instead of " + std::to_string(expected[e]);
        }
      }
    }
  }
  return "";
}

/// Runs the turns of a set on one rank.
int64_t run_turns(uint64_t seed, const RandomSet& set, comm::World& world,
                  const ReferenceRun& reference, bool guarded) {
  memory::Pool pool;
  if (guarded) pool.separate_pages();
  State state(pool, world.rank());
  Executors executors;
  executors.add(program::kTouch, Execute(touch));
  Site site{world, state, pool, executors};
  site.guarded = guarded;
  Runner runner(set.programs, site);
  int64_t ops = 0, step = 0;
  for (const std::string& turn : set.turns) ops += runner.run(turn, step++).ops;
  state.drain();
  EXPECT_EQ(difference(state, set, reference), "") << "seed " << seed << ", rank " << world.rank();
  return ops;
}

/// The same turns by the reference; returns the ops of all ranks.
int64_t run_plainly(const RandomSet& set, ReferenceRun& reference) {
  std::string last;
  int64_t ops = 0, step = 0;
  for (const std::string& turn : set.turns) {
    std::vector<const std::string*> kinds;
    set.programs.next(turn, {last, step}, {}, kinds);
    for (const std::string* kind : kinds) {
      ops += reference.run(set.programs.classes(*kind), {step, 0});
      last = *kind;
    }
    ++step;
  }
  return ops;
}

/// Runs the set of a seed, sometimes on a slow network; returns the operations of all ranks.
int64_t run_set(uint64_t seed, int64_t ranks, bool slow, bool guarded) {
  const RandomSet set = program::random_set(seed, ranks);
  program::verify_or_throw(set.programs);
  ReferenceRun reference(ranks);
  const int64_t expected = run_plainly(set, reference);
  comm::ThreadWorldOptions options;
  options.faults.seed = seed;
  options.faults.max_delay_seconds = slow ? 200e-6 : 0.0;
  const auto worlds = comm::make_thread_worlds(ranks, flat_cluster(ranks), options);
  std::atomic<int64_t> executed{0};
  EXPECT_NO_THROW(comm::run_ranks(
      *worlds,
      [&](comm::World& world) { executed += run_turns(seed, set, world, reference, guarded); }))
      << "seed " << seed;
  EXPECT_EQ(executed.load(), expected) << "seed " << seed;
  return executed;
}

/// Every fourth of the sets, from `first` on; a tenth of them on a slow network.
void run_sets(uint64_t first) {
  const uint64_t count = static_cast<uint64_t>(test::repetitions(10000, 600));
  int64_t ops = 0;
  for (uint64_t seed = first; seed < count; seed += 4) {
    const int64_t ranks = std::vector<int64_t>{2, 3, 4, 2, 4, 1}[(seed / 4) % 6];
    ops += run_set(seed, ranks, (seed / 4) % 10 == 0, false);
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(ops, static_cast<int64_t>(count) * 20);
}

// Suites run side by side under ctest.
TEST(RandomSetsFirst, ComputeWhatThePlainExecutionDoes) { run_sets(0); }
TEST(RandomSetsSecond, ComputeWhatThePlainExecutionDoes) { run_sets(1); }
TEST(RandomSetsThird, ComputeWhatThePlainExecutionDoes) { run_sets(2); }
TEST(RandomSetsFourth, ComputeWhatThePlainExecutionDoes) { run_sets(3); }

// Values that transfers in flight use stay within reach of them, and of nobody else.
TEST(RandomSetsGuarded, ComputeTheSame) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(test::repetitions(200, 40)); ++seed) {
    run_set(seed, 2 + static_cast<int64_t>(seed % 3), seed % 10 == 0, true);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace strait::runtime
