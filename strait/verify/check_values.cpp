// The life of every value of one program, followed through one execution.
#include <fmt/format.h>

#include "strait/program/lifetime.h"
#include "strait/program/transfer.h"
#include "strait/verify/findings.h"

namespace strait::program {

namespace {

/// Where a value is in its life. Pointers are operations of the program, null before the first.
struct ValueState {
  const Op* writer = nullptr;  // last write that overwrote it
  const Op* freer = nullptr;   // last free; set while it is freed
  bool live = false;           // transient values: between a write and its free
  bool seen = false;           // the last write has been read, added to or awaited
  bool part = false;           // what is live is this rank's part, which was reduced into it
};

class ValueCheck {
 public:
  ValueCheck(int64_t rank_class, Findings& findings)
      : rank_class_(rank_class),
        findings_(findings),
        program_(findings.classes()[rank_class]),
        slots_(program_),
        states_(slots_.size()),
        written_(program_.arrays.size(), 0),
        freed_(program_.arrays.size(), 0) {}

  void run() {
    for_each_instance(program_, [&](const Op& op, const std::vector<int64_t>& loops) {
      if (findings_.full()) return;
      loops_ = &loops;
      step(op);
    });
    left_over();
  }

 private:
  int64_t slot(const Operand& operand) const {
    return slots_.slot(operand.array, evaluate(operand.index, *loops_));
  }
  bool is_transient(const Operand& operand) const {
    return program_.arrays[operand.array].lifetime == Lifetime::kTransient;
  }
  std::string name(int64_t slot) const {
    return findings_.value_name(rank_class_, slots_.array_of(slot), slots_.index_of(slot));
  }
  std::string there(const Op* op) const {
    const std::string place = findings_.place(rank_class_, op);
    const size_t loop = place.find(", loop ");
    const std::string where = loop == std::string::npos ? "" : " of " + place.substr(loop + 2);
    return findings_.quote(rank_class_, *op) + where;
  }
  void problem(const char* kind, const Op& op, int64_t slot, const std::string& what,
               const Op* other) {
    const std::string text = other == nullptr ? "" : print_op(program_, *other);
    findings_.add(kind, {rank_class_, &op, loops_, slots_.array_of(slot)},
                  findings_.quote(rank_class_, op) + " " + what, text);
  }

  void step(const Op& op) {
    if (is_free(op)) {
      for (const Operand& operand : op.reads) release(op, operand);
      for (const Operand& operand : op.writes) release(op, operand);
      return;
    }
    for (const Operand& operand : op.waits) {
      if (const int64_t s = slot(operand); s >= 0) states_[s].seen = true;
    }
    for (const Operand& operand : op.reads) {
      use(op, operand, "reads");
      whole(op, operand, "reads");
    }
    for (size_t w = 0; w < op.writes.size(); ++w) {
      twice(op, w);
      if (reads_before(op.writes[w])) use(op, op.writes[w], verb_of(op.writes[w]));
      if (reads_before(op.writes[w]) && op.kind != OpKind::kReduceScatter)
        whole(op, op.writes[w], verb_of(op.writes[w]));
      write(op, op.writes[w]);
    }
  }

  void use(const Op& op, const Operand& operand, const char* verb) {
    const int64_t s = slot(operand);
    ValueState& state = states_[s];
    state.seen = true;
    if (state.live || !is_transient(operand)) return;
    if (state.freer != nullptr) {
      problem("use-after-free", op, s,
              fmt::format("{} {}, but {} comes first and nothing writes it again", verb, name(s),
                          there(state.freer)),
              state.freer);
    } else {
      problem("read-before-write", op, s,
              fmt::format("{} {}, which nothing has written", verb, name(s)), nullptr);
    }
    state.live = true;  // so that one missing write is reported once
  }

  /// Of a value that only this rank's part is written of, only a gather reads just that.
  void whole(const Op& op, const Operand& operand, const char* verb) {
    const int64_t s = slot(operand);
    if (!states_[s].part || op.kind == OpKind::kAllGather) return;
    problem("read-before-write", op, s,
            fmt::format("{} {}, of which {} has written only this rank's part", verb, name(s),
                        there(states_[s].writer)),
            states_[s].writer);
    states_[s].part = false;
  }

  /// What was dead before, and of which the op writes only this rank's part.
  bool writes_part(const Op& op, const Operand& operand) const {
    if (op.kind != OpKind::kReduceScatter || !is_transient(operand)) return false;
    const int64_t s = slot(operand);
    if (states_[s].live) return states_[s].part;
    const int64_t rank = class_ranks(program_).front();
    const int64_t position = program_.groups[op.group].position(rank);
    return transfer_split(program_, op, rank).count(position) <
           value_elements(program_, program_.arrays[operand.array], rank);
  }

  /// One operation must not name a value twice where one of the two is a write, unless it works in
  /// place.
  void twice(const Op& op, size_t w) {
    const int64_t s = slot(op.writes[w]);
    for (size_t other = 0; other < w; ++other) {
      if (slot(op.writes[other]) != s) continue;
      problem("concurrent-write", op, s, fmt::format("writes {} twice", name(s)), &op);
    }
    for (const Operand& read : op.reads) {
      if (slot(read) != s || !conflicts(op)) continue;
      problem("concurrent-write", op, s, fmt::format("reads {} while it writes it", name(s)), &op);
    }
  }

  /// Collectives but all-to-all and shift work in place. A kernel that does declares an update.
  static bool conflicts(const Op& op) {
    return op.kind == OpKind::kCopy || op.kind == OpKind::kAllToAll || op.kind == OpKind::kShift ||
           op.kind == OpKind::kKernel;
  }
  static const char* verb_of(const Operand& operand) {
    return operand.access == Access::kAdd ? "adds to" : "updates";
  }

  void write(const Op& op, const Operand& operand) {
    const int64_t s = slot(operand);
    ValueState& state = states_[s];
    const Op* before = state.writer;
    if (before != nullptr && !state.seen && before->stream != op.stream) {
      problem("concurrent-write", op, s,
              fmt::format("overwrites {} on another stream than {}, whose result nothing reads",
                          name(s), there(before)),
              before);
    }
    if (is_transient(operand) && !state.live) ++written_[operand.array];
    state = {&op, nullptr, true, false, writes_part(op, operand)};
  }

  void release(const Op& op, const Operand& operand) {
    const int64_t s = slot(operand);
    ValueState& state = states_[s];
    if (state.live) {
      ++freed_[operand.array];
    } else if (state.freer != nullptr) {
      problem("double-free", op, s,
              fmt::format("frees {}, which {} freed already", name(s), there(state.freer)),
              state.freer);
    } else {
      problem("read-before-write", op, s,
              fmt::format("frees {}, which nothing has written", name(s)), nullptr);
    }
    state = {nullptr, &op, false, false, false};
  }

  void left_over() {
    loops_ = nullptr;
    for (int64_t s = 0; s < slots_.size(); ++s) {
      const int array = slots_.array_of(s);
      const ValueState& state = states_[s];
      if (program_.arrays[array].lifetime != Lifetime::kTransient || !state.live ||
          state.writer == nullptr)
        continue;
      findings_.add(
          "not-freed", {rank_class_, state.writer, nullptr, array},
          fmt::format("value {} is written {} times and freed {}: {} of {} is never freed",
                      program_.arrays[array].name, written_[array], freed_[array], name(s),
                      there(state.writer)));
    }
  }

  int64_t rank_class_;
  Findings& findings_;
  const Program& program_;
  SlotMap slots_;
  std::vector<ValueState> states_;
  std::vector<int64_t> written_, freed_;  // lives begun and ended, by array
  const std::vector<int64_t>* loops_ = nullptr;
};

}  // namespace

void check_values(int64_t rank_class, Findings& findings) {
  ValueCheck(rank_class, findings).run();
}

}  // namespace strait::program
