// A program of one's own with a kernel of one's own: every rank squares a vector, then all ranks
// sum theirs. The same program is verified, simulated on a described cluster and run on threads.
#include <cstdio>
#include <vector>

#include "strait/comm/threads/thread_world.h"
#include "strait/runtime/interpreter.h"
#include "strait/sim/simulate.h"
#include "strait/verify/verify.h"

using namespace strait;

constexpr int64_t kRanks = 4, kElements = 1000;

/// Table entry: the operand is read and then overwritten, memory is what bounds it.
const program::Kernel kSquare = {"square", program::Bound::kMemory, {{"x", program::kUpdates}}, {}};

program::Program compose() {
  program::Program program{.name = "squares", .step_kind = "steady", .ranks = kRanks};
  program.streams = {{"compute", 0}, {"network", 0}};
  program.groups = {{"world", kRanks, 1, 0}};
  program.arrays = {
      {.name = "x", .partition = {kElements, kElements}, .lifetime = program::Lifetime::kResident}};
  const program::Operand x = {.array = 0, .access = program::Access::kUpdate};
  program::Op square{.kind = program::OpKind::kKernel, .kernel = &kSquare, .writes = {x}};
  program::Op sum{.kind = program::OpKind::kAllReduce, .stream = 1, .group = 0};
  sum.reads = {as(x, program::Access::kRead)};
  sum.writes = {as(x, program::Access::kWrite)};
  sum.partition = {kElements, kElements / kRanks};
  program.body = {square, sum};
  return program;
}

/// What the interpreter calls wherever a program says "square".
void execute_square(const runtime::Instance& instance) {
  auto* x = static_cast<float*>(instance.write(0));
  for (int64_t i = 0; i < kElements; ++i) x[i] *= x[i];
}

int main() {
  const program::Program program = compose();
  std::fputs(print(program).c_str(), stdout);
  program::verify_or_throw({program});
  const Cluster cluster = make_cluster(
      {.levels =
           {{.name = "network", .size = kRanks, .gb_per_second = 1, .latency_microseconds = 5}}},
      kRanks);
  std::printf("simulated: %.1f us\n", 1e6 * sim::simulate(program, cluster).seconds);

  runtime::Executors executors;
  executors.add(kSquare, runtime::Execute(execute_square));
  const auto worlds = comm::make_thread_worlds(kRanks, cluster);
  std::vector<float> sums(kRanks);
  comm::run_ranks(*worlds, [&](comm::World& world) {
    memory::Pool pool;
    runtime::State state(pool, world.rank());
    state.bind(program);
    const std::vector<float> start(kElements, static_cast<float>(world.rank() + 1));
    state.write("x", start.data(), kElements * 4);
    runtime::Interpreter(program, {world, state, pool, executors}).run(0);
    state.drain();
    state.read("x", &sums[world.rank()], 4);
  });
  for (const float sum : sums) std::printf("1 + 4 + 9 + 16 = %g\n", sum);
  return sums == std::vector<float>(kRanks, 30) ? 0 : 1;
}
