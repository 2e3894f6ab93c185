#include "strait/runtime/interpreter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "strait/base/clock.h"
#include "strait/collective/of_op.h"
#include "strait/comm/call_check.h"
#include "strait/comm/wait_table.h"
#include "strait/memory/library_meter.h"
#include "strait/program/operation_text.h"
#include "strait/program/shares.h"
#include "strait/program/transfer.h"
#include "strait/tensor/device.h"

namespace strait::runtime {

using program::Op;
using program::OpKind;

Interpreter::Interpreter(const program::Program& program, const Site& site)
    : program_(program),
      site_(site),
      tracker_(program),
      transferred_(program::transferred_arrays(program)),
      row_(site.world.waits()) {
  site_.state.bind(program_);
  const program::SlotMap& slots = tracker_.slots();
  data_.assign(static_cast<size_t>(slots.size()), nullptr);
  joined_.resize(program_.arrays.size());
  for (const program::ValueArray& array : program_.arrays) {
    array_bytes_.push_back(program::value_bytes(program_, array, site_.state.rank()));
    const bool transient = array.lifetime == program::Lifetime::kTransient;
    residents_.push_back(transient ? nullptr : &site_.state.array(array.name));
  }
  for (int64_t s = 0; s < slots.size(); ++s) {
    const int array = slots.array_of(s);
    value_bytes_.push_back(program::value_bytes(program_, program_.arrays[array],
                                                site_.state.rank(), slots.index_of(s)));
    if (residents_[array] != nullptr) data_[s] = residents_[array]->buffers[slots.index_of(s)];
    if (residents_[array] != nullptr) resident_slots_.push_back(s);
  }
  if (site_.guarded && site_.pool.device() == nullptr) guard_ = std::make_unique<Guard>();
  compile();
}

Interpreter::~Interpreter() {
  for (auto& [op, compiled] : compiled_)
    if (compiled.apart != nullptr) site_.pool.release(compiled.apart);
}

void Interpreter::compile() {
  program::for_each_op(program_.body,
                       [&](const Op& op) { compiled_.emplace(&op, compile_op(op)); });
}

Interpreter::CompiledOp Interpreter::compile_op(const Op& op) {
  CompiledOp compiled;
  if (site_.recorder != nullptr)
    compiled.span_name = site_.recorder->name(program::print_op(program_, op));
  compiled.text = program::operation_text(program_, op);
  if (op.kernel != nullptr) {
    compiled.execute = site_.executors.make(program_, op);
    const program::KernelCost cost = program::cost_of(program_, op, site_.state.rank());
    compiled.workspace_bytes = cost.workspace_bytes;
    compiled.calls_library = cost.library.bytes > 0;  // else what it takes is not known
  }
  if (program::is_communication(op.kind)) compile_call(op, compiled);
  add_to_flight(op, compiled);
  return compiled;
}

void Interpreter::compile_call(const Op& op, CompiledOp& compiled) {
  const int64_t rank = site_.state.rank();
  const program::Group& group = program_.groups[op.group];
  std::vector<int64_t> members;
  for (int64_t at = 0; at < group.size; ++at) members.push_back(group.member(rank, at));
  compiled.communicator = &site_.world.communicator(members, op.stream);
  std::vector<int64_t> alike = program_.members;
  std::ranges::sort(alike);
  compiled.among_alike = alike.empty() || std::ranges::includes(alike, members);
  communicators_.insert(compiled.communicator);
  comm::Call& call = compiled.call;
  call.operation = collective::operation_of(op.kind);
  call.deadline_seconds = site_.deadline_seconds;
  call.accumulate = !op.writes.empty() && op.writes.front().access == program::Access::kAdd;
  call.codec = op.codec;
  call.piece_bytes = program::piece_length(program_, op);
  call.outlives = program::may_outlive(program_, op);
  if (op.kind == OpKind::kBarrier) return;
  call.dtype = program::transfer_array(program_, op).dtype;
  const program::Split split = program::transfer_split(program_, op, rank);
  for (int64_t part = 0; part < split.parts; ++part) call.counts.push_back(split.count(part));
  // Every member sends part p of an equal split to position p, so it receives its own part from
  // each.
  if (op.kind == OpKind::kAllToAll)
    call.receive_counts.assign(static_cast<size_t>(group.size), split.count(group.position(rank)));
  compiled.source_offset = program::source_offset(program_, op, rank) * dtype_bytes(call.dtype);
  compiled.destination_offset =
      program::destination_offset(program_, op, rank) * dtype_bytes(call.dtype);
}

void Interpreter::add_to_flight(const Op& op, CompiledOp& compiled) {
  if (site_.flight == nullptr || op.kind == OpKind::kFree) return;
  trace::FlightOperation operation;
  operation.text = compiled.text;
  operation.stream = program::stream_names(program_)[op.stream];
  if (compiled.communicator != nullptr) {
    const program::Group& group = program_.groups[op.group];
    for (int64_t at = 0; at < group.size; ++at)
      operation.group.push_back(group.member(site_.state.rank(), at));
    for (const int64_t count : compiled.call.counts)
      operation.bytes += count * dtype_bytes(compiled.call.dtype);
  }
  compiled.flight_operation = site_.flight->add(std::move(operation));
}

trace::FlightMark Interpreter::note(const CompiledOp& compiled, const program::Loops& loops,
                                    double now) {
  const auto values = compiled.text.pick(loops);
  text_size_ = compiled.text.write(values, text_.data(), text_.size());
  const int64_t index = times_.ops - 1;
  if (row_ != nullptr && compiled.communicator == nullptr)
    row_->busy({text_.data(), text_size_}, named_step_, index, now);
  if (site_.flight == nullptr) return {};
  return site_.flight->issue(compiled.flight_operation, named_step_, index, values, now);
}

/// The inline op has ended well; when.
double Interpreter::ended(const trace::FlightMark& mark) const {
  const double now = now_seconds();
  mark.end(now, false);
  if (row_ != nullptr) row_->idle(now);
  return now;
}

/// An error of an op on this rank is this rank's, unless it says otherwise.
void Interpreter::complete_place(ErrorPlace& place) const {
  if (place.operation || place.step || place.rank) return;
  place.rank = site_.state.rank();
  place.step = named_step_;
  if (text_size_ > 0) place.operation = std::string(text_.data(), text_size_);
}

RunTimes Interpreter::run(int64_t step, Waiting waiting, std::optional<int64_t> named) {
  const double began = now_seconds();
  waiting_ = waiting;
  step_ = step;
  named_step_ = named.value_or(step);
  text_size_ = 0;
  times_ = {};
  tickets_.clear();
  issued_.clear();
  sends_.assign(program_.streams.size(), {});
  transfer_spans_.clear();
  carried_.clear();
  for (const int64_t s : resident_slots_)
    if (carries_of(s).under_way()) carried_.push_back(s);
  tracker_.begin(carried_);
  try {
    program::for_each_instance(
        program_, loops_, {step, 0},
        [&](const Op& op, const program::Loops& loops) { instance(op, loops); });
    finish();
  } catch (Error& failure) {
    complete_place(failure.place());
    release_all(failure.what(), failure.place());
    throw;
  } catch (const std::exception& failure) {
    release_all(failure.what(), {});
    throw;
  }
  const double ended = now_seconds();
  if (row_ != nullptr) row_->busy("between programs", named_step_, times_.ops, ended);
  times_.seconds = ended - began;
  return times_;
}

void Interpreter::drain_ledger(Ledger& ledger) {
  for (comm::Communicator* communicator : communicators_) communicator->drain_ledger(ledger);
}

void Interpreter::instance(const Op& op, const program::Loops& loops) {
  ++times_.ops;
  const program::StepPlan& plan = tracker_.next(op, loops);
  wait_for(plan);
  for (const int64_t s : plan.release_before) release(s);
  for (const int64_t s : plan.allocate) allocate(s);
  CompiledOp& compiled = compiled_.find(&op)->second;
  if (compiled.communicator != nullptr)
    start(op, compiled, loops, plan);
  else if (op.kind == OpKind::kCopy)
    copy(op, compiled, loops);
  else if (op.kind != OpKind::kFree)
    execute(op, compiled, loops);
  for (const int64_t s : plan.release_after) release(s);
}

void Interpreter::wait_ticket(comm::Ticket& ticket) {
  if (!ticket.done()) {
    const double began = now_seconds();
    ticket.wait();
    times_.exposed_seconds += now_seconds() - began;
  } else {
    ticket.wait();  // rethrows a failure
  }
}

/// To the tracker a transfer ends after those before it on its stream. A communicator does not hold
/// up what follows a send that nobody has taken yet, so the sends are awaited by their own tickets.
void Interpreter::wait_transfer(int64_t number) {
  wait_ticket(tickets_[number]);
  std::vector<int64_t>& sends = sends_[issued_[number].stream];
  size_t ended = 0;
  while (ended < sends.size() && sends[ended] <= number) wait_ticket(tickets_[sends[ended++]]);
  sends.erase(sends.begin(), sends.begin() + static_cast<std::ptrdiff_t>(ended));
}

void Interpreter::wait_for(const program::StepPlan& plan) {
  if (waiting_ == Waiting::kNever) return;
  for (const int64_t number : plan.wait_for) wait_transfer(number);
  if (plan.communication >= 0) return;  // its communicator awaits the carries
  for (const int64_t s : plan.carries)
    for (comm::Ticket& ticket : carries_of(s).tickets) wait_ticket(ticket);
}

Carries& Interpreter::carries_of(int64_t slot) const {
  const program::SlotMap& slots = tracker_.slots();
  return residents_[slots.array_of(slot)]->carries[slots.index_of(slot)];
}

void Interpreter::start(const Op& op, CompiledOp& compiled, const program::Loops& loops,
                        const program::StepPlan& plan) {
  std::vector<comm::Ticket> after;
  if (waiting_ != Waiting::kNever) {
    for (const int64_t s : plan.carries)
      after.insert(after.end(), carries_of(s).tickets.begin(), carries_of(s).tickets.end());
    for (const int64_t number : plan.after) {
      after.push_back(tickets_[number]);
      for (const int64_t send : sends_[issued_[number].stream])
        if (send < number && !tickets_[send].done()) after.push_back(tickets_[send]);
    }
    // Nor does the stream's own order keep what a send reads from being overwritten.
    for (const int64_t send : sends_[op.stream])
      if (!op.writes.empty() && issued_[send].source == slot(op.writes.front(), loops))
        after.push_back(tickets_[send]);
  }
  // One stream may serve several groups, each with a communicator of its own: the order is ours to
  // keep.
  if (plan.previous >= 0 && issued_[plan.previous].communicator != compiled.communicator)
    after.push_back(tickets_[plan.previous]);
  comm::Call& call = compiled.call;
  call.step = named_step_;
  call.flight = note(compiled, loops, now_seconds());
  call.label.assign(text_.data(), text_size_);
  call.peer = program::evaluate(op.peer, loops);
  const auto at = [&](const std::vector<program::Operand>& operands, int64_t offset) -> char* {
    void* data = operands.empty() ? nullptr : data_[slot(operands.front(), loops)];
    return data == nullptr ? nullptr : static_cast<char*>(data) + offset;
  };
  call.source = at(op.reads, compiled.source_offset);
  call.destination = at(op.writes, compiled.destination_offset);
  if (waiting_ == Waiting::kNever) set_apart(compiled);
  tickets_.push_back(compiled.communicator->start(call, after));
  if (op.kind == OpKind::kSend) sends_[op.stream].push_back(std::ssize(issued_));
  const bool sends = op.kind == OpKind::kSend;
  const auto first = [&](const std::vector<program::Operand>& operands) {
    return (guard_ || sends) && !operands.empty() ? slot(operands.front(), loops) : -1;
  };
  issued_.push_back({compiled.communicator, op.stream, first(op.reads), first(op.writes)});
  if (waiting_ == Waiting::kAtOnce && compiled.among_alike && !comm::is_pairwise(call.operation))
    wait_ticket(tickets_.back());
  if (site_.recorder != nullptr && site_.recorder->recording())
    transfer_spans_.push_back(
        {compiled.span_name, op.stream, static_cast<int64_t>(tickets_.size()) - 1});
}

void Interpreter::set_apart(CompiledOp& compiled) {
  comm::Call& call = compiled.call;
  int64_t sent = 0, received = 0;
  for (const int64_t count : call.counts) sent += count;
  for (const int64_t count : call.receive_counts) received += count;
  const int64_t bytes = std::max(sent, received) * dtype_bytes(call.dtype);
  if (compiled.apart == nullptr && bytes > 0) {
    compiled.apart = site_.pool.allocate(2 * bytes, memory::Reach::kShared);
    if (site_.pool.device() == nullptr)
      std::memset(compiled.apart, 0,
                  static_cast<size_t>(2 * bytes));  // sums of zeros stay ordinary numbers
  }
  if (call.source != nullptr) call.source = compiled.apart;
  if (call.destination != nullptr) call.destination = static_cast<char*>(compiled.apart) + bytes;
}

void Interpreter::copy(const Op& op, const CompiledOp& compiled, const program::Loops& loops) {
  const int64_t from = slot(op.reads.front(), loops), to = slot(op.writes.front(), loops);
  if (value_bytes_[from] != value_bytes_[to])
    throw InternalError("copy of values of different size: " +
                        program::print_op(program_, op, &loops));
  if (value_bytes_[from] == 0) return;
  const double began = now_seconds();
  const trace::FlightMark mark = note(compiled, loops, began);
  mark.begin(began);
  tensor::copy_bytes(site_.pool.device(), data_[from], data_[to], value_bytes_[from]);
  ended(mark);
}

void Interpreter::bind_operands(const std::vector<program::Operand>& operands,
                                const program::Loops& loops, std::vector<Bound>& bound) const {
  bound.clear();
  for (const program::Operand& operand : operands) {
    const int64_t index = program::evaluate(operand.index, loops);
    const int64_t s = tracker_.slots().slot(operand.array, index);
    bound.push_back(
        {operand.slot, operand.access, operand.array, index, value_bytes_[s], data_[s]});
  }
}

/// Whether a transfer may be at work on a value, or on one that is joined to it: one of this
/// program or a carry of an earlier one.
bool Interpreter::in_flight(int64_t s) const {
  const program::SlotMap& slots = tracker_.slots();
  const int array = slots.array_of(s);
  const bool joined = program_.arrays[array].joined;
  const auto is_it = [&](int64_t other) {
    return other == s || (joined && other >= 0 && slots.array_of(other) == array);
  };
  for (size_t number = 0; number < issued_.size(); ++number)
    if ((is_it(issued_[number].source) || is_it(issued_[number].destination)) &&
        !tickets_[number].done())
      return true;
  const bool resident = residents_[array] != nullptr;
  return resident && carries_of(s).under_way();
}

void Interpreter::run_guarded(const CompiledOp& compiled) {
  guard_->begin();
  const program::SlotMap& slots = tracker_.slots();
  for (int64_t s = 0; s < slots.size(); ++s) {
    const int array = slots.array_of(s);
    if (data_[s] == nullptr || in_flight(s)) continue;
    if (!program_.arrays[array].joined) {
      guard_->add({static_cast<std::byte*>(data_[s]), value_bytes_[s], array, slots.index_of(s)});
    } else if (s == 0 || slots.array_of(s - 1) != array || data_[s - 1] == nullptr) {
      // Pages are shared by neighbours, so joined values are guarded together.
      guard_->add({reinterpret_cast<std::byte*>(joined_[array].data), array_bytes_[array], array,
                   slots.index_of(s)});
    }
  }
  guard_->run(compiled.execute, instance_, compiled.workspace_bytes);
}

void Interpreter::execute(const Op& op, const CompiledOp& compiled, const program::Loops& loops) {
  instance_.program = &program_;
  instance_.op = &op;
  instance_.loops = &loops;
  instance_.step = step_;
  instance_.rank = site_.state.rank();
  bind_operands(op.reads, loops, instance_.reads);
  bind_operands(op.writes, loops, instance_.writes);
  instance_.workspace = site_.pool.allocate(compiled.workspace_bytes);
  const double began = now_seconds();
  const trace::FlightMark mark = note(compiled, loops, began);
  mark.begin(began);
  std::unique_ptr<memory::LibraryMeter> meter;
  if (compiled.calls_library) meter = memory::meter_library(site_.pool);
  try {
    site_.executors.before(instance_);
    guard_ ? run_guarded(compiled) : compiled.execute(instance_);
  } catch (...) {
    mark.end(now_seconds(), true);
    site_.pool.release(instance_.workspace);
    throw;
  }
  const double end = ended(mark);
  if (site_.recorder != nullptr)
    site_.recorder->add(compiled.span_name, op.stream, {began, end}, named_step_);
  site_.pool.release(instance_.workspace);
}

void Interpreter::allocate(int64_t s) {
  const int array = tracker_.slots().array_of(s);
  if (residents_[array] != nullptr) return;
  const program::ValueArray& values = program_.arrays[array];
  if (!values.joined) {
    data_[s] = take(array, array_bytes_[array]);
    return;
  }
  Joined& joined = joined_[array];
  if (joined.alive++ == 0) joined.data = static_cast<char*>(take(array, array_bytes_[array]));
  const int64_t first =
      program::joined_begin(program_, values, site_.state.rank(), tracker_.slots().index_of(s));
  data_[s] = joined.data + first * dtype_bytes(values.dtype);
}

/// New memory for values of a transient array.
void* Interpreter::take(int array, int64_t bytes) {
  void* data = site_.pool.allocate(bytes, reach_of(program_.arrays[array], transferred_[array]));
  // What no transfer fills must be ordinary numbers: denormal ones make computing many times
  // slower.
  if (waiting_ == Waiting::kNever && transferred_[array] && site_.pool.device() == nullptr)
    std::memset(data, 0, static_cast<size_t>(bytes));
  return data;
}

void Interpreter::release(int64_t s) {
  const int array = tracker_.slots().array_of(s);
  if (residents_[array] != nullptr) return;
  Joined& joined = joined_[array];
  if (!program_.arrays[array].joined)
    site_.pool.release(data_[s]);
  else if (--joined.alive == 0)
    site_.pool.release(std::exchange(joined.data, nullptr));
  data_[s] = nullptr;
}

void Interpreter::finish() {
  const program::FinishPlan& plan = tracker_.finish();
  if (waiting_ != Waiting::kAsWritten)
    for (comm::Ticket& ticket : tickets_) wait_ticket(ticket);
  for (const int64_t number : plan.wait_for) wait_transfer(number);
  for (const int64_t s : plan.release) release(s);
  for (const TransferSpan& span : transfer_spans_) {
    const auto [begin, end] = tickets_[span.number].interval();
    if (end > 0) site_.recorder->add(span.name, span.stream, {begin, end}, named_step_);
  }
  if (waiting_ == Waiting::kNever) return;
  // What this program has started on a value comes after what it found under way there.
  for (const auto& [s, number] : plan.outstanding) carries_of(s).tickets.clear();
  for (const auto& [s, number] : plan.outstanding)
    carries_of(s).tickets.push_back(tickets_[number]);
}

void Interpreter::release_all(const std::string& reason, const ErrorPlace& place) {
  // Transfers may still touch the buffers: let them end, or fail, first.
  site_.world.abort(reason, place);
  for (comm::Ticket& ticket : tickets_) {
    try {
      ticket.wait();
    } catch (const std::exception&) {  // the failure under way is what the caller hears of
    }
  }
  const program::SlotMap& slots = tracker_.slots();
  for (int64_t s = 0; s < slots.size(); ++s) {
    if (residents_[slots.array_of(s)] == nullptr && data_[s] != nullptr) release(s);
  }
}

}  // namespace strait::runtime
