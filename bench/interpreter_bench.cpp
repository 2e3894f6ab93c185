// What interpreting costs per operation, with kernels that do nothing: the counter ns_per_op, to
// compare between builds. Arguments: iterations of the loop. Run with --benchmark_repetitions=5 for
// a spread.
#include <benchmark/benchmark.h>

#include <string>

#include "strait/comm/threads/thread_world.h"
#include "strait/runtime/interpreter.h"

namespace strait::runtime {
namespace {

using program::Access;
using program::Lifetime;
using program::Op;
using program::Operand;
using program::OpKind;
using program::Program;

const program::Kernel kNothing{
    "nothing",
    program::Bound::kNothing,
    {{"values", program::kReads | program::kWrites | program::kUpdates, program::Count::kAny}},
    {}};

Cluster one_rank() {
  Cluster cluster;
  cluster.name = "bench";
  cluster.levels = {{"world", 1, 1e9, 1e-6, 1}};
  cluster.ranks = 1;
  return cluster;
}

int add_value(Program& program, const std::string& name, Lifetime lifetime) {
  program::ValueArray array;
  array.name = name;
  array.partition = {16, 16};
  array.lifetime = lifetime;
  program.arrays.push_back(array);
  return static_cast<int>(program.arrays.size()) - 1;
}

Op kernel(std::vector<Operand> reads, std::vector<Operand> writes) {
  Op op;
  op.kind = OpKind::kKernel;
  op.kernel = &kNothing;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  return op;
}

Op other(OpKind kind, std::vector<Operand> reads, std::vector<Operand> writes) {
  Op op;
  op.kind = kind;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  if (kind != OpKind::kFree) {
    op.stream = 1;
    op.group = 0;
  }
  return op;
}

/// `iterations` times: a value is written, used beside two others and freed; with `transfers` it is
/// also summed over the one rank.
Program loop_of(int64_t iterations, bool transfers) {
  Program program;
  program.name = "bench";
  program.step_kind = "steady";
  program.streams = {{"compute", 0}, {"world", 0}};
  program.groups = {{"world", 1, 1, 0}};
  const Operand made{add_value(program, "made", Lifetime::kTransient), {}, Access::kWrite};
  const Operand input{add_value(program, "input", Lifetime::kResident), {}};
  const Operand state{add_value(program, "state", Lifetime::kResident), {}, Access::kUpdate};
  program::Repeat repeat;
  repeat.variable = "i";
  repeat.loop = program.num_loops++;
  repeat.count = iterations;
  repeat.body = {kernel({input}, {made})};
  const Operand read = program::as(made, Access::kRead);
  if (transfers) repeat.body.push_back(other(OpKind::kAllReduce, {read}, {made}));
  repeat.body.push_back(kernel({read, input}, {state}));
  repeat.body.push_back(other(OpKind::kFree, {}, {made}));
  program.body = {repeat};
  return program;
}

void interpret(benchmark::State& state, bool transfers) {
  const Program program = loop_of(state.range(0), transfers);
  const auto worlds = comm::make_thread_worlds(1, one_rank(), {});
  memory::Pool pool;
  State residents(pool, 0);
  Executors executors;
  int64_t executed = 0;
  executors.add(kNothing, Execute([&](const Instance&) { ++executed; }));
  trace::FlightRecord flight;
  Interpreter interpreter(program,
                          {worlds->world(0), residents, pool, executors, nullptr, 20, &flight});
  int64_t ops = 0;
  double seconds = 0;
  for (auto _ : state) {
    const RunTimes times = interpreter.run(0);
    ops += times.ops;
    seconds += times.seconds;
  }
  if (executed != 2 * state.range(0) * static_cast<int64_t>(state.iterations()))
    return state.SkipWithError("kernels were left out");
  state.counters["ns_per_op"] = 1e9 * seconds / static_cast<double>(ops);
}

void kernels(benchmark::State& state) { interpret(state, false); }
void kernels_and_transfers(benchmark::State& state) { interpret(state, true); }

BENCHMARK(kernels)->Arg(10000)->Unit(benchmark::kMillisecond);
BENCHMARK(kernels_and_transfers)->Arg(10000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace strait::runtime
