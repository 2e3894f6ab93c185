// Random legal programs for all ranks of a world. Also used by the tests of what executes programs.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "strait/base/random.h"
#include "strait/program/program.h"
#include "tests/program/test_kernels.h"

namespace strait::program {

/// Writes one script of steps and, from it, the program of every class of ranks. Every class issues
/// its part of every step in the order of the script, so no cycle can arise; values live alike in
/// all classes. Compute is kCopy and kTouch (reads, writes, updates and adds to any values). Two
/// families of values (a number of elements and a dtype), each as whole and as parts over every
/// group, resident and transient.
class RandomProgram {
 public:
  RandomProgram(uint64_t seed, int64_t ranks) : random_(seed, "random program"), ranks_(ranks) {
    declare_world();
    declare_values();
    const int64_t steps = 4 + below(16);
    for (int64_t k = 0; k < steps; ++k) step();
    for (size_t a = 0; a < values_.size(); ++a) free_left(static_cast<int>(a));
  }

  std::vector<Program> take() { return std::move(classes_); }

 private:
  static constexpr int kLanes = 3;
  static constexpr int64_t kCount = 4;  // elements of every array
  static constexpr int kNoStream = -2;

  /// What the script knows of one value. Transient ones exist while `live`.
  struct Value {
    bool live = false;
    int stream = -1;   // of the last write
    bool seen = true;  // read since
  };
  struct Kind {  // equal arrays
    int family = 0;
    int group = -1;     // parts over this group, -1 = whole
    int resident = 0;   // array
    int transient = 0;  // array
  };

  int64_t below(int64_t bound) {
    return static_cast<int64_t>(random_.below(counter_++, static_cast<uint64_t>(bound)));
  }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[below(static_cast<int64_t>(from.size()))];
  }

  void declare_world() {
    Program program;
    program.name = "random";
    program.step_kind = "steady";
    program.ranks = ranks_;
    program.streams = {{"compute", 0}};
    for (int64_t lane = 0; lane < kLanes; ++lane) program.streams.push_back({"world", lane});
    program.groups = {{"world", ranks_, 1, 0}};
    for (int64_t size = 1; size < ranks_; ++size) {
      if (ranks_ % size != 0) continue;
      program.groups.push_back({"near" + std::to_string(size), size, 1, 0});
      if (size > 1)
        program.groups.push_back({"far" + std::to_string(size), ranks_ / size, size, 0});
    }
    for (int trial = 0; ranks_ % 2 == 0 && trial < 8; ++trial) {
      const Group pairs = mixed_pairs();
      if (coincides(program.groups, pairs)) continue;
      program.groups.push_back(pairs);
      break;
    }
    // Classes are the positions in one group; messages run along it.
    line_ = static_cast<int>(below(static_cast<int64_t>(program.groups.size())));
    const Group line = program.groups[line_];
    const int64_t num_classes = below(4) == 0 ? 1 : line.size;
    for (int64_t c = 0; c < num_classes; ++c) {
      Program one = program;
      for (int64_t rank = 0; num_classes > 1 && rank < ranks_; ++rank) {
        if (line.position(rank) == c) one.members.push_back(rank);
      }
      classes_.push_back(std::move(one));
    }
    for (Program& one : classes_) open_.push_back({&one.body});
  }

  /// Pairs of ranks that no stride describes, most of the time.
  Group mixed_pairs() {
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < ranks_; ++rank)
      ranks.insert(ranks.begin() + below(rank + 1), rank);
    std::vector<std::vector<int64_t>> lists;
    for (int64_t rank = 0; rank < ranks_; rank += 2)
      lists.push_back(
          {std::min(ranks[rank], ranks[rank + 1]), std::max(ranks[rank], ranks[rank + 1])});
    return {"mixed", 2, 1, 0, {}, MemberLists(std::move(lists))};
  }

  /// Whether a group has the ranks of another one somewhere, but not everywhere.
  bool coincides(const std::vector<Group>& groups, const Group& pairs) const {
    for (const Group& other : groups) {
      if (other.size != 2 || same_members(other, pairs, ranks_)) continue;
      for (int64_t rank = 0; rank < ranks_; ++rank)
        if (other.members(rank) == pairs.members(rank)) return true;
    }
    return false;
  }

  void declare_values() {
    const std::vector<Group>& groups = classes_[0].groups;
    for (int family = 0; family < 2; ++family) {
      const int64_t elements = pick(std::vector<int64_t>{0, 1, 5, 24, 33});
      const Dtype dtype = below(2) == 0 ? Dtype::kFloat32 : Dtype::kFloat64;
      for (int group = -1; group < static_cast<int>(groups.size()); ++group) {
        const int64_t size = group < 0 ? 1 : groups[group].size;
        const int64_t grain = (elements + size - 1) / size + (group < 0 ? 0 : below(3));
        Kind kind{family, group,
                  declare(family, group, {elements, grain}, dtype, Lifetime::kResident),
                  declare(family, group, {elements, grain}, dtype, Lifetime::kTransient)};
        kinds_.push_back(kind);
      }
    }
  }

  int declare(int family, int group, Partition partition, Dtype dtype, Lifetime lifetime) {
    ValueArray array;
    const bool resident = lifetime == Lifetime::kResident;
    array.name = std::string(resident ? "r" : "t") + std::to_string(family) +
                 (group < 0 ? "" : "." + classes_[0].groups[group].name);
    array.count = kCount;
    array.dtype = dtype;
    array.partition = partition;
    array.group = group;
    array.lifetime = lifetime;
    for (Program& program : classes_) program.arrays.push_back(array);
    values_.push_back(std::vector<Value>(kCount, Value{resident, -1, true}));
    return static_cast<int>(values_.size()) - 1;
  }

  bool is_transient(int array) const {
    return classes_[0].arrays[array].lifetime == Lifetime::kTransient;
  }

  Value& value(const Operand& operand) { return values_[operand.array][operand.index.constant]; }

  /// A value that can be read: live; else resident, which always is.
  Operand readable(const Kind& kind) {
    std::vector<Operand> choices;
    for (const int array : {kind.resident, kind.transient}) {
      for (int64_t k = 0; k < kCount; ++k) {
        if (values_[array][k].live) choices.push_back(at(array, k));
      }
    }
    return pick(choices);
  }

  static bool same(const Operand& one, const Operand& other) {
    return one.array == other.array && one.index == other.index;
  }

  /// A value that an op on `stream` may overwrite; not `other`. Falls back to null array -1.
  Operand writable(const Kind& kind, int stream, const Operand* other = nullptr) {
    std::vector<Operand> choices;
    for (const int array : {kind.resident, kind.transient}) {
      for (int64_t k = 0; k < kCount; ++k) {
        const Value& v = values_[array][k];
        if (v.live && !v.seen && v.stream != stream) continue;
        if (other != nullptr && other->array == array && other->index.constant == k) continue;
        choices.push_back(at(array, k));
      }
    }
    return choices.empty() ? at(-1, 0) : pick(choices);
  }

  void wrote(const Operand& operand, int stream) { value(operand) = {true, stream, false}; }
  void read(const Operand& operand) { value(operand).seen = true; }

  const Kind& kind_of(int family, int group) const {
    return *std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) {
      return kind.family == family && kind.group == group;
    });
  }

  void emit(const Op& op) {
    for (size_t c = 0; c < classes_.size(); ++c) emit_to(c, op);
  }
  void emit_to(size_t c, const Op& op) { open_[c].back()->emplace_back(op); }

  void maybe_wait(Op& op) {
    if (below(5) != 0) return;
    const Kind& kind = pick(kinds_);
    const Operand operand =
        at(below(2) == 0 ? kind.resident : kind.transient, below(kCount + 2) - 1);
    op.waits.push_back(operand);
    if (operand.index.constant >= 0 && operand.index.constant < kCount) read(operand);
  }

  void step() {
    switch (below(9)) {
      case 0:
      case 1:
        return touch();
      case 2:
        return copy();
      case 3:
        return message();
      case 4:
        return free_one();
      case 5:
        return loop();
      default:
        return collective();
    }
  }

  /// What a kernel does to a value; only what exists can be read before.
  Access change_of(const Operand& target) {
    if (!value(target).live || below(3) == 0) return Access::kWrite;
    return below(2) == 0 ? Access::kUpdate : Access::kAdd;
  }

  void touch() {
    Op op = touch_op({}, {});
    for (int64_t k = below(3); k > 0; --k) op.reads.push_back(readable(pick(kinds_)));
    for (const Operand& operand : op.reads) read(operand);
    maybe_wait(op);
    for (int64_t k = 1 + below(2); k > 0; --k) {
      const Operand target = writable(pick(kinds_), kCompute);
      const auto is_target = [&](const Operand& other) { return same(other, target); };
      if (target.array < 0 || std::any_of(op.writes.begin(), op.writes.end(), is_target)) continue;
      const bool was_read = std::erase_if(op.reads, is_target) > 0;
      op.writes.push_back(as(target, was_read ? Access::kUpdate : change_of(target)));
    }
    for (const Operand& operand : op.writes) wrote(operand, kCompute);
    emit(op);
  }

  void copy() {
    Op op;
    op.kind = OpKind::kCopy;
    const Kind& kind = pick(kinds_);
    const std::vector<std::vector<Value>> before = values_;
    const Operand from = readable(kind);
    read(from);
    maybe_wait(op);
    const Operand to = writable(kind, kCompute, &from);
    if (to.array < 0) {
      values_ = before;  // no op, so nothing has been read
      return;
    }
    op.reads = {from};
    op.writes = {as(to, Access::kWrite)};
    wrote(to, kCompute);
    emit(op);
  }

  int lane() { return 1 + static_cast<int>(below(kLanes)); }

  void collective() {
    const int group = static_cast<int>(below(static_cast<int64_t>(classes_[0].groups.size())));
    const int family = static_cast<int>(below(2));
    const Kind &whole = kind_of(family, -1), &parts = kind_of(family, group);
    const Kind& any = pick(kinds_);
    switch (below(6)) {
      case 0:
        return transfer(OpKind::kAllGather, group, parts, whole);
      case 1:
        return transfer(OpKind::kReduceScatter, group, whole, parts);
      case 2:
        // Parts over another group differ in size between the members of this one.
        return transfer(OpKind::kAllReduce, group, any.group < 0 ? any : whole,
                        any.group < 0 ? any : whole);
      case 3:
        return transfer(OpKind::kBroadcast, group, whole, whole);
      case 4:
        return all_to_all(group, whole);
      default:
        Op op;
        op.kind = OpKind::kBarrier;
        op.group = group;
        op.stream = lane();
        maybe_wait(op);
        return emit(op);
    }
  }

  void all_to_all(int group, const Kind& whole) {
    const Partition partition = classes_[0].arrays[whole.resident].partition;
    if (partition.elements % classes_[0].groups[group].size != 0) return;
    transfer(OpKind::kAllToAll, group, whole, whole);
  }

  /// A collective from a value of one kind to one of another. Same kind: sometimes in place.
  void transfer(OpKind op_kind, int group, const Kind& from, const Kind& to) {
    Op op;
    op.kind = op_kind;
    op.group = group;
    op.stream = lane();
    const Kind& parts = kind_of(from.family, group);
    op.partition = classes_[0].arrays[parts.resident].partition;
    const int64_t size = classes_[0].groups[group].size;
    if (op_kind == OpKind::kAllToAll) op.partition.grain = op.partition.elements / size;
    if (op_kind == OpKind::kBroadcast) op.peer.constant = below(size);
    const std::vector<std::vector<Value>> before = values_;
    const Operand source = readable(from);
    read(source);
    maybe_wait(op);
    const bool may_alias = op_kind == OpKind::kAllReduce || op_kind == OpKind::kBroadcast;
    Operand target = may_alias && below(3) == 0 ? source : writable(to, op.stream, &source);
    if (target.array < 0) {
      values_ = before;  // no op, so nothing has been read
      return;
    }
    const bool reduces = op_kind == OpKind::kReduceScatter || op_kind == OpKind::kAllReduce;
    const bool exists = values_[target.array][target.index.constant].live;
    const bool adds = reduces && exists && !same(target, source) && below(2) == 0;
    op.reads = {source};
    op.writes = {as(target, adds ? Access::kAdd : Access::kWrite)};
    wrote(target, op.stream);
    emit(op);
  }

  /// From one class to another along the line; the other classes touch what the receiver gets.
  void message() {
    if (classes_.size() < 2) return;
    const int64_t count = static_cast<int64_t>(classes_.size());
    const int64_t from = below(count), to = (from + 1 + below(count - 1)) % count;
    const Kind& kind = kind_of(static_cast<int>(below(2)), -1);
    Op send;
    send.kind = OpKind::kSend;
    send.group = line_;
    send.stream = lane();
    send.peer.constant = to;
    send.reads = {readable(kind)};
    // The other classes overwrite on compute, so the value must be overwritable from any stream.
    const Operand target = writable(kind, kNoStream, &send.reads[0]);
    if (target.array < 0) return;
    Op receive = send;
    receive.kind = OpKind::kReceive;
    receive.peer.constant = from;
    receive.reads.clear();
    receive.writes = {as(target, Access::kWrite)};
    const Op local = touch_op({}, {target});
    for (int64_t c = 0; c < count; ++c) {
      if (c == from) emit_to(static_cast<size_t>(c), send);
      emit_to(static_cast<size_t>(c), c == to ? receive : local);
    }
    wrote(target, -1);
  }

  void free_value(const Operand& operand) {
    const Op op = make_op(OpKind::kFree, {}, {operand});
    value(operand) = {};
    emit(op);
  }

  void free_one() {
    std::vector<Operand> choices;
    for (size_t a = 0; a < values_.size(); ++a) {
      for (int64_t k = 0; k < kCount; ++k) {
        if (is_transient(static_cast<int>(a)) && values_[a][k].live)
          choices.push_back(at(static_cast<int>(a), k));
      }
    }
    if (!choices.empty()) free_value(pick(choices));
  }

  void free_left(int array) {
    for (int64_t k = 0; k < kCount && is_transient(array); ++k) {
      if (values_[array][k].live) free_value(at(array, k));
    }
  }

  /// Over all elements of an array that is not live: gather or touch each, use it one iteration
  /// later, free it there; upwards or downwards.
  void loop() {
    const int group = static_cast<int>(below(static_cast<int64_t>(classes_[0].groups.size())));
    const int family = static_cast<int>(below(2));
    const Kind &whole = kind_of(family, -1), &parts = kind_of(family, group);
    const int array = whole.transient;
    const auto live = [](const Value& v) { return v.live; };
    if (std::any_of(values_[array].begin(), values_[array].end(), live)) return;
    const bool down = below(2) == 0;
    const int stream = lane();
    const int number = classes_[0].num_loops;
    const auto element = [&](int of, int64_t offset) { return at(of, offset, number); };
    Op gather =
        make_op(OpKind::kAllGather, {element(parts.resident, 0)}, {element(array, 0)}, stream);
    gather.group = group;
    gather.partition = classes_[0].arrays[parts.resident].partition;
    if (below(2) == 0) gather.waits = {element(array, down ? 2 : -2)};
    const Op use = touch_op({element(array, 0)}, {});
    Op reduce = make_op(OpKind::kReduceScatter, {element(array, 0)},
                        {added(element(parts.resident, 0))}, lane());
    reduce.group = group;
    reduce.partition = gather.partition;
    const Op release = make_op(OpKind::kFree, {}, {element(array, 0)});
    open_loop(number, down);
    emit(gather);
    if (below(4) != 0) emit(use);
    if (below(2) == 0) emit(reduce);
    const bool frees_inside = below(2) == 0;
    if (frees_inside) emit(release);
    close_loop();
    for (int64_t k = 0; k < kCount; ++k) {
      // Whether the loop reads what it writes was left to chance; a wait settles it below.
      values_[array][k] = {!frees_inside, stream, false};
      values_[parts.resident][k] = {true, -1, true};
    }
    settle(parts.resident);
  }

  /// An op that awaits all elements of an array, so that any stream may overwrite them.
  void settle(int array) {
    Op op = touch_op({}, {});
    for (int64_t k = 0; k < kCount; ++k) op.waits.push_back(at(array, k));
    emit(op);
  }

  void open_loop(int number, bool down) {
    for (size_t c = 0; c < classes_.size(); ++c) {
      Repeat repeat;
      repeat.variable = "k";
      repeat.loop = number;
      repeat.first = down ? kCount - 1 : 0;
      repeat.step = down ? -1 : 1;
      repeat.count = kCount;
      classes_[c].num_loops = number + 1;
      open_[c].back()->emplace_back(std::move(repeat));
      open_[c].push_back(&std::get<Repeat>(open_[c].back()->back()).body);
    }
  }
  void close_loop() {
    for (auto& open : open_) open.pop_back();
  }

  RandomStream random_;
  uint64_t counter_ = 0;
  int64_t ranks_;
  int line_ = 0;  // group along which messages run
  std::vector<Program> classes_;
  std::vector<std::vector<std::vector<Node>*>> open_;  // [class] innermost body last
  std::vector<Kind> kinds_;
  std::vector<std::vector<Value>> values_;  // [array][index]
};

/// Programs of all classes of a world of `ranks` ranks; the same for the same arguments.
inline std::vector<Program> random_program(uint64_t seed, int64_t ranks) {
  return RandomProgram(seed, ranks).take();
}

}  // namespace strait::program
