// Programs on thread ranks, each with an executor that remembers what it is asked to do.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "strait/base/clock.h"
#include "strait/comm/threads/thread_world.h"
#include "strait/runtime/interpreter.h"
#include "tests/program/test_kernels.h"

namespace strait::runtime {

using program::Op;
using program::OpKind;
using program::Program;

inline Cluster flat_cluster(int64_t ranks) {
  Cluster cluster;
  cluster.name = "test";
  cluster.levels = {{"world", ranks, 1e9, 1e-6, 1}};
  cluster.ranks = ranks;
  return cluster;
}

/// The name of an op that is a call, else "".
inline std::string name_of(const Op& op) {
  return op.kernel == &program::kCall ? program::attribute<std::string>(op, program::kName) : "";
}

/// Executes all kernels of tests and remembers the names; `busy` seconds of work each.
class RecordingExecutor {
 public:
  explicit RecordingExecutor(double busy = 0) : busy_(busy) {
    for (const program::Kernel* kernel : {&program::kCall, &program::kTouch, &program::kForward})
      table.add(*kernel, Execute([this](const Instance& instance) { execute(instance); }));
  }
  RecordingExecutor(const RecordingExecutor&) = delete;
  RecordingExecutor& operator=(const RecordingExecutor&) = delete;

  Executors table;
  std::vector<std::string> executed;
  std::function<void(const Instance&)> during;

 private:
  void execute(const Instance& instance) {
    executed.push_back(name_of(*instance.op));
    const double end = now_seconds() + busy_;
    while (busy_ > 0 && now_seconds() < end) {
    }
    if (during) during(instance);
  }

  double busy_;
};

inline Program start_program(int64_t ranks) {
  Program program;
  program.name = "test";
  program.step_kind = "steady";
  program.ranks = ranks;
  program.streams = {{"compute", 0}, {"world", 0}};
  program.groups = {{"world", ranks, 1, 0}};
  return program;
}

inline int add_value(Program& program, const std::string& name, int64_t elements,
                     program::Lifetime lifetime) {
  program::ValueArray array;
  array.name = name;
  array.partition = {elements, elements};
  array.lifetime = lifetime;
  program.arrays.push_back(array);
  return static_cast<int>(program.arrays.size()) - 1;
}

inline Op touch(const std::string& name, int value) {
  return program::call_op(name, {}, {program::updated(program::at(value))});
}

inline Op all_reduce(int from, int to) {
  Op op = program::make_op(OpKind::kAllReduce, {program::at(from)}, {program::at(to)}, 1);
  op.group = 0;
  return op;
}

/// What interpreters of one rank work with.
struct Rank {
  explicit Rank(comm::World& its_world, double busy = 0)
      : world(its_world), state(pool, its_world.rank()), executor(busy) {}
  Site site(double deadline_seconds = 20.0, trace::FlightRecord* flight = nullptr) {
    return {world, state, pool, executor.table, nullptr, deadline_seconds, flight};
  }
  int64_t number() const { return world.rank(); }

  comm::World& world;
  memory::Pool pool;
  State state;
  RecordingExecutor executor;
};

/// Calls body(rank) on so many threads.
inline void on_ranks(int64_t ranks, const std::function<void(Rank&)>& body,
                     const comm::ThreadWorldOptions& options = {}, double busy = 0) {
  const auto worlds = comm::make_thread_worlds(ranks, flat_cluster(ranks), options);
  comm::run_ranks(*worlds, [&](comm::World& world) {
    Rank rank(world, busy);
    body(rank);
  });
}

/// Runs `program` once on every rank with an executor of its own; calls `check` on each rank
/// afterwards.
inline void run_on_threads(
    const Program& program, int64_t ranks, double busy, const comm::ThreadWorldOptions& options,
    const std::function<void(int64_t, RecordingExecutor&, State&, const RunTimes&)>& check) {
  const auto once = [&](Rank& rank) {
    trace::FlightRecord flight;
    Interpreter interpreter(program, rank.site(20.0, &flight));
    const RunTimes times = interpreter.run(0);
    rank.state.drain();
    check(rank.number(), rank.executor, rank.state, times);
  };
  on_ranks(ranks, once, options, busy);
}

}  // namespace strait::runtime
