// Joined values under the interpreter: chunks are made and summed one by one, and read as one,
// epoch after epoch; those of a group come from all its ranks (specs: overlap 7, X4, X5).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "strait/base/random.h"
#include "strait/verify/verify.h"
#include "tests/runtime/thread_ranks.h"
#include "tests/sanitized.h"

namespace strait::runtime {
namespace {

const program::Kernel kMakes{"makes_part",
                             program::Bound::kNothing,
                             {{"part", program::kWrites, program::Count::kOne, false}},
                             {}};
const program::Kernel kReads{"reads_one", program::Bound::kNothing, {{"sum"}}, {}};
const program::Kernel kTakes{"takes_part",
                             program::Bound::kNothing,
                             {{"part", program::kReads, program::Count::kOne, false}},
                             {}};

Op call(const program::Kernel& kernel, std::vector<program::Operand> reads,
        std::vector<program::Operand> writes) {
  Op op = program::make_op(OpKind::kKernel, std::move(reads), std::move(writes));
  op.kernel = &kernel;
  return op;
}

/// A vector of `elements` in parts of `grain`.
Program chunked(int64_t ranks, int64_t elements, int64_t grain) {
  Program program = start_program(ranks);
  const int sum = add_value(program, "sum", elements, program::Lifetime::kTransient);
  program::ValueArray& array = program.arrays.back();
  array.partition.grain = grain;
  array.count = (elements + grain - 1) / grain;
  array.joined = true;
  std::vector<program::Operand> parts;
  for (int64_t part = 0; part < array.count; ++part) {
    parts.push_back(program::at(sum, part));
    program.body.push_back(call(kMakes, {}, {parts.back()}));
    Op op = program::make_op(OpKind::kAllReduce, {parts.back()}, {parts.back()}, 1);
    op.group = 0;
    program.body.push_back(op);
  }
  program.body.push_back(call(kReads, parts, {}));
  program.body.push_back(program::make_op(OpKind::kFree, {}, parts));
  return program;
}

/// What rank `rank` puts into all elements; sums are exact.
float number(int64_t epoch, int64_t rank) { return static_cast<float>(epoch + 7 * rank); }

void run_epochs(const Program& program, int64_t epochs) {
  ASSERT_TRUE(program::verify(std::vector<Program>{program}).empty());
  std::atomic<int64_t> wrong{0};
  on_ranks(program.ranks, [&](Rank& rank) {
    const int64_t elements = program.arrays[0].partition.elements;
    const RandomStream stream(11, "delay", static_cast<uint64_t>(rank.number()));
    uint64_t drawn = 0;
    rank.executor.table.add(kMakes, Execute([&](const Instance& instance) {
                              for (uint64_t turns = stream.below(drawn++, 8); turns > 0; --turns)
                                std::this_thread::yield();
                              const Bound& part = instance.writes.front();
                              std::fill_n(static_cast<float*>(part.data), part.bytes / 4,
                                          number(instance.step, rank.number()));
                            }));
    rank.executor.table.add(kReads, Execute([&](const Instance& instance) {
                              float want = 0;
                              for (int64_t other = 0; other < program.ranks; ++other)
                                want += number(instance.step, other);
                              const auto* sum =
                                  static_cast<const float*>(instance.reads.front().data);
                              wrong += elements - std::count(sum, sum + elements, want);
                            }));
    Interpreter interpreter(program, rank.site());
    for (int64_t epoch = 0; epoch < epochs; ++epoch) interpreter.run(epoch);
    EXPECT_EQ(rank.pool.live_bytes(), 0);
  });
  EXPECT_EQ(wrong, 0);
}

TEST(JoinedChunks, TenThousandEpochsReadNothingStale) {
  run_epochs(chunked(3, 100, 30), test::repetitions(10000, 1000));
}

TEST(JoinedChunks, OfAnySize) {
  for (const int64_t ranks : {1, 2, 4})
    for (const int64_t elements : {1, 5, 64, 1000})
      for (const int64_t grain : {1, 3, 64, 1000})
        if (elements <= 64 * grain) run_epochs(chunked(ranks, elements, grain), 3);
}

/// The rows of a group: a rank makes its share, shifts bring the others chunk by chunk in the order
/// of the ranks behind, each is read as soon as it is there, and all of them as one.
Program gathered(int64_t ranks, int64_t share, int64_t grain) {
  Program program = start_program(ranks);
  const int rows = add_value(program, "rows", ranks * share, program::Lifetime::kTransient);
  program::ValueArray& array = program.arrays.back();
  const int64_t chunks = (share + grain - 1) / grain;
  array.partition.grain = grain;
  array.count = ranks * chunks;
  array.group = 0;
  array.joined = true;
  const auto chunk = [&](int64_t shard, int64_t number) {
    return program::at(rows, shard * chunks + number);
  };
  std::vector<program::Operand> all;
  for (int64_t shard = 0; shard < ranks; ++shard)
    for (int64_t number = 0; number < chunks; ++number) all.push_back(chunk(shard, number));
  program.body.push_back(call(kMakes, {}, {all.begin(), all.begin() + chunks}));
  for (int64_t shard = 1; shard < ranks; ++shard)
    for (int64_t number = 0; number < chunks; ++number) {
      Op op = program::make_op(OpKind::kShift, {chunk(0, number)}, {chunk(shard, number)}, 1);
      op.group = 0;
      op.peer = {ranks - shard - 1};
      program.body.push_back(op);
    }
  for (const program::Operand& one : all) program.body.push_back(call(kTakes, {one}, {}));
  program.body.push_back(call(kReads, all, {}));
  program.body.push_back(program::make_op(OpKind::kFree, {}, all));
  return program;
}

void run_gathers(const Program& program, int64_t epochs) {
  ASSERT_TRUE(program::verify(std::vector<Program>{program}).empty());
  const program::ValueArray& array = program.arrays[0];
  const int64_t share = array.partition.elements / program.ranks;
  const int64_t chunks = array.count / program.ranks;
  std::atomic<int64_t> wrong{0};
  on_ranks(program.ranks, [&](Rank& rank) {
    const RandomStream stream(11, "delay", static_cast<uint64_t>(rank.number()));
    uint64_t drawn = 0;
    const auto delay = [&] {
      for (uint64_t turns = stream.below(drawn++, 8); turns > 0; --turns) std::this_thread::yield();
    };
    const auto expect = [&](const float* data, int64_t elements, int64_t epoch, int64_t from) {
      wrong += elements - std::count(data, data + elements, number(epoch, from));
    };
    rank.executor.table.add(kMakes, Execute([&](const Instance& instance) {
                              delay();
                              std::fill_n(static_cast<float*>(instance.writes.front().data), share,
                                          number(instance.step, rank.number()));
                            }));
    rank.executor.table.add(kTakes, Execute([&](const Instance& instance) {
                              delay();
                              const Bound& one = instance.reads.front();
                              expect(static_cast<const float*>(one.data), one.bytes / 4,
                                     instance.step,
                                     (rank.number() + one.index / chunks) % program.ranks);
                            }));
    rank.executor.table.add(kReads, Execute([&](const Instance& instance) {
                              const void* lowest = instance.reads.front().data;
                              for (const Bound& one : instance.reads)
                                lowest = std::min(lowest, static_cast<const void*>(one.data));
                              for (int64_t from = 0; from < program.ranks; ++from)
                                expect(static_cast<const float*>(lowest) + from * share, share,
                                       instance.step, from);
                            }));
    Interpreter interpreter(program, rank.site());
    for (int64_t epoch = 0; epoch < epochs; ++epoch) interpreter.run(epoch);
    EXPECT_EQ(rank.pool.live_bytes(), 0);
  });
  EXPECT_EQ(wrong, 0);
}

TEST(JoinedShards, TenThousandEpochsReadNothingStale) {
  run_gathers(gathered(3, 50, 20), test::repetitions(10000, 1000));
}

TEST(JoinedShards, OfAnySize) {
  for (const int64_t ranks : {1, 2, 3, 4})
    for (const int64_t share : {1, 5, 64})
      for (const int64_t grain : {1, 3, 64})
        if (share <= 64 * grain) run_gathers(gathered(ranks, share, grain), 3);
}

}  // namespace
}  // namespace strait::runtime
