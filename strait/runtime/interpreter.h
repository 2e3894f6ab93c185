// Executes a program on one rank: compute inline on the calling thread, transfers on the
// communicators of their lanes. Holds no strategy: it does what the program says, in the order it
// says.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "strait/base/errors.h"
#include "strait/comm/communicator.h"
#include "strait/memory/pool.h"
#include "strait/program/lifetime.h"
#include "strait/program/program.h"
#include "strait/runtime/executors.h"
#include "strait/runtime/guard.h"
#include "strait/runtime/state.h"
#include "strait/trace/flight.h"
#include "strait/trace/spans.h"

namespace strait::runtime {

/// When an op waits for transfers. All but the first are for measuring what overlap hides.
enum class Waiting : uint8_t {
  kAsWritten,  // for those that the program says
  kAtOnce,     // for each transfer as soon as it is started: nothing is hidden; the same results.
               // Not for messages and for transfers between ranks of different programs, such as
               // stages: those on the other side may come to them later than to what they need
  kNever,      // for none before the end: the same bytes flow behind the same compute, from and to
               // buffers of their own. What is computed means nothing
};

/// What one run of a program took on this rank.
struct RunTimes {
  double seconds = 0;
  double exposed_seconds = 0;  // compute stream waited for transfers
  int64_t ops = 0;
  RunTimes& operator+=(const RunTimes& other) {
    seconds += other.seconds;
    exposed_seconds += other.exposed_seconds;
    ops += other.ops;
    return *this;
  }
};

/// Where a rank lives: everything an interpreter needs besides the program. All outlive it.
struct Site {
  comm::World& world;
  State& state;
  memory::Pool& pool;
  const Executors& executors;
  trace::Recorder* recorder = nullptr;  // may be null: nothing is recorded
  double deadline_seconds = 120;
  trace::FlightRecord* flight = nullptr;  // may be null: none is kept
  bool guarded = kGuarded;                // kernels are held to what they declare; on plain memory
};

/// A program bound to one rank. Not thread-safe; one thread per rank. While it runs, the rank's row
/// of the table of waits and its flight record show where it is; errors of an op that say no place
/// get the op's.
class Interpreter {
 public:
  /// Binds resident values and communicators. The program must outlive the interpreter and have
  /// passed the verifier.
  Interpreter(const program::Program& program, const Site& site);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;
  /// Runs the program once. Carried transfers may be under way on return (State::drain). On an
  /// exception the world is aborted and transient values are released. `named`: what messages and
  /// records call the step, where that is not `step`.
  RunTimes run(int64_t step, Waiting waiting = Waiting::kAsWritten,
               std::optional<int64_t> named = std::nullopt);
  /// Adds what this rank's communicators of the program counted since the last call, and forgets it
  /// there.
  void drain_ledger(Ledger& ledger);

 private:
  struct CompiledOp {
    Execute execute;  // of a kernel
    int64_t workspace_bytes = 0;
    bool calls_library = false;
    comm::Communicator* communicator = nullptr;
    bool among_alike = true;  // all ranks of a transfer run this program
    comm::Call call;          // all but buffers, peer, step, label and mark
    int64_t source_offset = 0, destination_offset = 0;  // bytes
    int span_name = 0;
    int flight_operation = 0;
    trace::OperationText text;
    void* apart = nullptr;  // what its transfers use under Waiting::kNever
  };
  struct TransferSpan {
    int name = 0, stream = 0;
    int64_t number = 0;
  };
  struct Issued {
    comm::Communicator* communicator = nullptr;
    int stream = 0;
    int64_t source = -1, destination = -1;  // slots
  };
  void compile();
  void add_to_flight(const program::Op& op, CompiledOp& compiled);
  /// Notes that the op begins on the rank's own thread, or is handed to a communicator.
  trace::FlightMark note(const CompiledOp& compiled, const program::Loops& loops, double now);
  double ended(const trace::FlightMark& mark) const;
  void complete_place(ErrorPlace& place) const;
  CompiledOp compile_op(const program::Op& op);
  void compile_call(const program::Op& op, CompiledOp& compiled);
  void instance(const program::Op& op, const program::Loops& loops);
  void start(const program::Op& op, CompiledOp& compiled, const program::Loops& loops,
             const program::StepPlan& plan);
  void run_guarded(const CompiledOp& compiled);
  bool in_flight(int64_t slot) const;
  void execute(const program::Op& op, const CompiledOp& compiled, const program::Loops& loops);
  void copy(const program::Op& op, const CompiledOp& compiled, const program::Loops& loops);
  void bind_operands(const std::vector<program::Operand>& operands, const program::Loops& loops,
                     std::vector<Bound>& bound) const;
  void wait_for(const program::StepPlan& plan);
  /// What an earlier program has left under way on a resident value.
  Carries& carries_of(int64_t slot) const;
  void wait_ticket(comm::Ticket& ticket);
  /// Points the call at buffers that no op computes with.
  void set_apart(CompiledOp& compiled);
  /// Waits for a transfer, and for the sends before it on its stream.
  void wait_transfer(int64_t number);
  void allocate(int64_t slot);
  void release(int64_t slot);
  void* take(int array, int64_t bytes);
  void finish();
  void release_all(const std::string& reason, const ErrorPlace& place);
  int64_t slot(const program::Operand& operand, const program::Loops& loops) const {
    return tracker_.slots().slot(operand.array, program::evaluate(operand.index, loops));
  }

  const program::Program& program_;
  Site site_;
  program::LifetimeTracker tracker_;
  /// Memory of the joined values of an array: there while one of them is alive.
  struct Joined {
    char* data = nullptr;
    int64_t alive = 0;
  };
  std::vector<int64_t> value_bytes_;       // by slot
  std::vector<int64_t> array_bytes_;       // by array: of one value, or of all that are joined
  std::vector<Joined> joined_;             // by array
  std::vector<ResidentArray*> residents_;  // by array, nullptr for transient ones
  std::vector<bool> transferred_;          // by array: other ranks must reach it
  std::vector<int64_t> resident_slots_;
  std::vector<int64_t> carried_;             // scratch: slots with a carry under way
  std::vector<void*> data_;                  // by slot
  std::vector<comm::Ticket> tickets_;        // by transfer instance of this run
  std::vector<Issued> issued_;               // by transfer instance of this run
  std::vector<std::vector<int64_t>> sends_;  // by stream: those not known to have ended
  std::set<comm::Communicator*> communicators_;
  std::vector<TransferSpan> transfer_spans_;  // of this run, while all spans are recorded
  std::unordered_map<const program::Op*, CompiledOp> compiled_;
  comm::WaitRow* row_ = nullptr;  // may be null
  std::array<char, 256> text_{};  // of the inline op that runs now
  size_t text_size_ = 0;
  program::Loops loops_;  // scratch
  Instance instance_;
  std::unique_ptr<Guard> guard_;  // null = not guarded
  RunTimes times_;
  Waiting waiting_ = Waiting::kAsWritten;
  int64_t step_ = 0, named_step_ = 0;
};

}  // namespace strait::runtime
