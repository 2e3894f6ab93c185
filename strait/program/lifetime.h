// When operations must wait and when values come and go, one executed operation at a time. The
// runtime acts on it, peak_memory and the verifier replay it: they agree because they ask the same
// object.
//
// Rules. Operations other than communication run inline, in program order, before anything after
// them is issued. Communication operations run on their streams. Known to have ended is a
// communication op that an inline op waited for, every earlier op on its stream, and every op that
// it was itself started after.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "strait/program/program.h"

namespace strait::program {

/// Dense numbers of all values of a program: array by array, index by index.
class SlotMap {
 public:
  explicit SlotMap(const Program& program);
  int64_t size() const { return first_.back(); }
  /// -1 when there is no such value.
  int64_t slot(int array, int64_t index) const {
    if (index < 0 || index >= first_[array + 1] - first_[array]) return -1;
    return first_[array] + index;
  }
  int array_of(int64_t slot) const { return array_[slot]; }
  int64_t index_of(int64_t slot) const { return slot - first_[array_[slot]]; }

 private:
  std::vector<int64_t> first_;  // [arrays + 1]
  std::vector<int> array_;      // [slots]
};

/// What surrounds one executed operation, in this order: wait_for ends; release_before; allocate;
/// the operation runs or is started; release_after. Carries end before an inline op runs; a
/// communication op is started after them, as after those in `after`. Communication ops are
/// numbered 0, 1, ... in the order of issue.
struct StepPlan {
  int64_t communication = -1;  // number of this op, -1 for inline ops
  int64_t previous = -1;       // communication: the op before it on its stream, unless known ended
  std::vector<int64_t> wait_for;  // inline: communication ops that must end before it runs
  std::vector<int64_t> after;  // communication: ops on other streams that must end before it starts
  std::vector<int64_t> carries;  // slots whose transfer of an earlier program must end before
  std::vector<int64_t> release_before;  // slots; never for communication
  std::vector<int64_t> allocate;        // slots written for the first time
  std::vector<int64_t> release_after;   // slots; only for free
};

/// What is left when the program ends.
struct FinishPlan {
  std::vector<int64_t> wait_for;  // communication ops
  std::vector<int64_t> release;   // slots, then
  std::vector<std::pair<int64_t, int64_t>>
      outstanding;  // (resident slot, communication op that uses it)
};

/// Whether a communication op may be under way when its program has ended: it writes a carry and
/// uses no transient value.
bool may_outlive(const Program& program, const Op& op);

/// Follows one execution of a program, which must outlive it and be legal (verify); for an illegal
/// one the answers are meaningless but harmless. Not thread-safe. Cost: a few tens of nanoseconds
/// per operand and stream; no allocation once the most communication ops that are under way at once
/// have been seen.
class LifetimeTracker {
 public:
  explicit LifetimeTracker(const Program& program);

  const SlotMap& slots() const { return slots_; }
  /// Starts over. `carried`: resident slots that a transfer of an earlier program may still use.
  void begin(const std::vector<int64_t>& carried = {});
  /// The next executed op; valid until the next call. Throws InternalError when an operand lies
  /// outside its array.
  const StepPlan& next(const Op& op, const std::vector<int64_t>& loops);
  /// Waits for all but carries: communication ops that write a carry and use no transient value.
  const FinishPlan& finish();

  /// True once the communication op `number` is known to have ended.
  bool known_ended(int64_t number) const {
    return number < oldest_ || number <= known_[entry(number)[0]];
  }
  /// Communication ops below this number are all known to have ended.
  int64_t oldest_unknown() const { return oldest_; }

 private:
  enum class State : uint8_t { kAbsent, kLive, kPending };  // kPending: freed, memory still in use

  /// Stream and clock of a communication op: entry[0] = stream, entry[s] = last op on stream s that
  /// has ended when this one has.
  int64_t* entry(int64_t number) { return &entries_[(number & mask_) * streams_]; }
  const int64_t* entry(int64_t number) const { return &entries_[(number & mask_) * streams_]; }
  int64_t slot_of(const Operand& operand, const std::vector<int64_t>& loops) const;
  void need(int64_t number);
  void need_touches(int64_t slot);
  void collect(const Op& op, const std::vector<int64_t>& loops);
  void take_carry(int64_t slot, bool settles);
  void wait_inline();
  void know(int64_t number);
  void start_communication(const Op& op, const std::vector<int64_t>& loops);
  void reserve_entry();
  bool in_use(int64_t slot) const;
  void release_pending(std::vector<int64_t>& released);
  void free_values(const std::vector<Operand>& operands, const std::vector<int64_t>& loops);
  void allocate(const Op& op, const std::vector<int64_t>& loops);
  void touch(const Op& op, const std::vector<int64_t>& loops);
  void note_carry(const Op& op, const std::vector<int64_t>& loops);

  const Program& program_;
  SlotMap slots_;
  int64_t streams_;     // at least 1
  int64_t issued_ = 0;  // communication ops so far
  int64_t oldest_ = 0;
  int64_t mask_ = 0;  // entries_ is a ring of mask_ + 1 entries
  std::vector<int64_t> entries_;
  std::vector<int64_t> known_;       // [streams] last op known to have ended, -1
  std::vector<int64_t> last_;        // [streams] last op issued, -1
  std::vector<int64_t> last_plain_;  // [streams] the same without carries
  std::vector<int64_t> needed_;      // [streams] scratch of next()
  std::vector<int64_t> writer_;      // [slots] communication op that wrote it last, -1
  std::vector<int64_t> touched_;     // [slots * streams] last communication op that touched it, -1
  std::vector<State> state_;         // [slots]
  std::vector<char> carried_;        // [slots]
  std::vector<char> transient_;      // [slots]
  std::vector<int64_t> pending_;     // slots in kPending; may hold stale or repeated ones
  std::vector<std::pair<int64_t, int64_t>> carries_;
  bool learned_ = false;  // known_ grew since the last release_pending
  StepPlan plan_;
  FinishPlan finish_;
};

/// True when `op` frees: the freed values are its operands, whether listed as read or as written.
inline bool is_free(const Op& op) { return op.kind == OpKind::kFree; }

}  // namespace strait::program
