// Random legal programs for all ranks of a world. Also used by the tests of what executes programs.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "strait/program/program.h"
#include "tests/program/random_world.h"
#include "tests/program/test_kernels.h"

namespace strait::program {

/// Indices of an array move on by `scale` with a counter, modulo its count.
struct Rotation {
  int counter = kNoLoop;  // none
  int64_t scale = 0;
};

/// Writes one script of steps and, from it, the program of every class of ranks. Every class issues
/// its part of every step in the order of the script, so no cycle can arise; values live alike in
/// all classes. Compute is kCopy and kTouch (reads, writes, updates and adds to any values).
///
/// An array that rotates does so in every operand, so under any value of the counter the program is
/// the one without rotation with the elements of that array renamed.
class RandomProgram {
 public:
  /// `rotations`: by array; empty = none rotates, and roots do not move either.
  RandomProgram(Draws& draws, const RandomWorld& world, std::vector<Rotation> rotations = {})
      : draws_(draws),
        classes_(world.classes),
        line_(world.line),
        pairs_(world.pairs),
        rotations_(std::move(rotations)) {
    for (Program& one : classes_) open_.push_back({&one.body});
    for (const ValueArray& array : classes_[0].arrays)
      values_.emplace_back(kCount, Value{array.lifetime != Lifetime::kTransient, -1, true});
    for (int64_t left = 4 + below(16); left > 0; --left) step();
  }

  /// A transfer into an element of every given array, so that it is under way when the program
  /// ends.
  void launch(const std::vector<int>& arrays) {
    for (const int array : arrays) {
      const auto pair = std::find_if(pairs_.begin(), pairs_.end(), [&](const ArrayPair& candidate) {
        return candidate.resident == array;
      });
      transfer_into(*pair);
    }
  }

  std::vector<Program> take() {
    for (size_t a = 0; a < values_.size(); ++a) free_left(static_cast<int>(a));
    return std::move(classes_);
  }

 private:
  static constexpr int64_t kCount = RandomWorld::kCount;
  static constexpr int kNoStream = -2;

  /// What the script knows of one value. Transient ones exist while `live`.
  struct Value {
    bool live = false;
    int stream = -1;   // of the last write
    bool seen = true;  // read since
  };

  int64_t below(int64_t bound) { return draws_.below(bound); }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return draws_.pick(from);
  }

  bool is_transient(int array) const {
    return classes_[0].arrays[array].lifetime == Lifetime::kTransient;
  }

  Value& value(const Operand& operand) { return values_[operand.array][operand.index.constant]; }

  /// A value that can be read: live; else resident, which always is.
  Operand readable(const ArrayPair& pair) {
    std::vector<Operand> choices;
    for (const int array : {pair.resident, pair.transient}) {
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
  Operand writable(const ArrayPair& pair, int stream, const Operand* other = nullptr) {
    std::vector<Operand> choices;
    for (const int array : {pair.resident, pair.transient}) {
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

  const ArrayPair& pair_of(int family, int group) const {
    return *std::find_if(pairs_.begin(), pairs_.end(), [&](const ArrayPair& pair) {
      return pair.family == family && pair.group == group;
    });
  }

  void emit(const Op& op) {
    for (size_t c = 0; c < classes_.size(); ++c) emit_to(c, op);
  }
  void emit_to(size_t c, Op op) {
    for (auto* operands : {&op.reads, &op.writes, &op.waits})
      for (Operand& operand : *operands) rotate(operand);
    open_[c].back()->emplace_back(std::move(op));
  }

  void rotate(Operand& operand) const {
    const Rotation rotation = rotations_.empty() ? Rotation{} : rotations_[operand.array];
    if (rotation.counter == kNoLoop) return;
    Index& index = operand.index;
    index.constant =
        (index.constant + kCount) % kCount;  // a wait may have named a value out of range
    (index.loop == kNoLoop ? index.loop : index.other_loop) = rotation.counter;
    (index.other_loop == kNoLoop ? index.scale : index.other_scale) = rotation.scale;
    index.modulo = kCount;
  }

  void maybe_wait(Op& op) {
    if (below(5) != 0) return;
    const ArrayPair& pair = pick(pairs_);
    const Operand operand =
        at(below(2) == 0 ? pair.resident : pair.transient, below(kCount + 2) - 1);
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
    for (int64_t k = below(3); k > 0; --k) op.reads.push_back(readable(pick(pairs_)));
    for (const Operand& operand : op.reads) read(operand);
    maybe_wait(op);
    for (int64_t k = 1 + below(2); k > 0; --k) {
      const Operand target = writable(pick(pairs_), kCompute);
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
    const ArrayPair& pair = pick(pairs_);
    const std::vector<std::vector<Value>> before = values_;
    const Operand from = readable(pair);
    read(from);
    maybe_wait(op);
    const Operand to = writable(pair, kCompute, &from);
    if (to.array < 0) {
      values_ = before;  // no op, so nothing has been read
      return;
    }
    op.reads = {from};
    op.writes = {as(to, Access::kWrite)};
    wrote(to, kCompute);
    emit(op);
  }

  int lane() { return 1 + static_cast<int>(below(RandomWorld::kLanes)); }

  void collective() {
    const int group = static_cast<int>(below(static_cast<int64_t>(classes_[0].groups.size())));
    const int family = static_cast<int>(below(2));
    const ArrayPair &whole = pair_of(family, -1), &parts = pair_of(family, group);
    const ArrayPair& any = pick(pairs_);
    switch (below(7)) {
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
      case 5:
        return transfer(OpKind::kShift, group, whole, whole);
      default:
        Op op;
        op.kind = OpKind::kBarrier;
        op.group = group;
        op.stream = lane();
        maybe_wait(op);
        return emit(op);
    }
  }

  void all_to_all(int group, const ArrayPair& whole) {
    const Partition partition = classes_[0].arrays[whole.resident].partition;
    if (partition.elements % classes_[0].groups[group].size != 0) return;
    transfer(OpKind::kAllToAll, group, whole, whole);
  }

  /// A collective among a group, of vectors of a family; without operands.
  Op collective_op(OpKind kind, int group, int family) {
    Op op;
    op.kind = kind;
    op.group = group;
    op.stream = lane();
    op.partition = classes_[0].arrays[pair_of(family, group).resident].partition;
    const int64_t size = classes_[0].groups[group].size;
    if (kind == OpKind::kAllToAll) op.partition.grain = op.partition.elements / size;
    if (kind == OpKind::kShift) op.peer.constant = below(std::max<int64_t>(1, size - 1));
    if (kind == OpKind::kBroadcast) {
      op.peer.constant = below(size);
      if (!rotations_.empty() && draws_.one_in(2)) op.peer = {op.peer.constant, kStepCounter, 1};
      if (!op.peer.is_constant()) op.peer.modulo = size;
    }
    return op;
  }

  /// A collective from a value of one pair to one of another. Of the same pair: sometimes in place.
  void transfer(OpKind kind, int group, const ArrayPair& from, const ArrayPair& to) {
    Op op = collective_op(kind, group, from.family);
    const std::vector<std::vector<Value>> before = values_;
    const Operand source = readable(from);
    read(source);
    maybe_wait(op);
    const bool may_alias = kind == OpKind::kAllReduce || kind == OpKind::kBroadcast;
    const Operand target = may_alias && below(3) == 0 ? source : writable(to, op.stream, &source);
    if (target.array < 0) {
      values_ = before;  // no op, so nothing has been read
      return;
    }
    connect(op, source, target);
  }

  void connect(Op& op, const Operand& source, const Operand& target) {
    const bool reduces = op.kind == OpKind::kReduceScatter || op.kind == OpKind::kAllReduce;
    const bool adds = reduces && value(target).live && !same(target, source) && below(2) == 0;
    op.reads = {source};
    op.writes = {as(target, adds ? Access::kAdd : Access::kWrite)};
    wrote(target, op.stream);
    emit(op);
  }

  /// A collective into a resident value of the pair, from whole resident values.
  void transfer_into(const ArrayPair& to) {
    const int64_t groups = static_cast<int64_t>(classes_[0].groups.size());
    const bool whole = to.group < 0;
    const int group = whole ? static_cast<int>(below(groups)) : to.group;
    Op op = collective_op(whole ? OpKind::kAllReduce : OpKind::kReduceScatter, group, to.family);
    const Operand source = at(pair_of(to.family, -1).resident, below(kCount));
    const Operand target = at(to.resident, below(kCount));
    const Value& there = value(target);
    if (!there.seen && there.stream != op.stream) op.waits = {target};
    read(source);
    connect(op, source, target);
  }

  /// From one class to another along the line; the other classes touch what the receiver gets.
  void message() {
    if (classes_.size() < 2) return;
    const int64_t count = static_cast<int64_t>(classes_.size());
    const int64_t from = below(count), to = (from + 1 + below(count - 1)) % count;
    const ArrayPair& pair = pair_of(static_cast<int>(below(2)), -1);
    Op send;
    send.kind = OpKind::kSend;
    send.group = line_;
    send.stream = lane();
    send.peer.constant = to;
    send.reads = {readable(pair)};
    // The other classes overwrite on compute, so the value must be overwritable from any stream.
    const Operand target = writable(pair, kNoStream, &send.reads[0]);
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
    const ArrayPair &whole = pair_of(family, -1), &parts = pair_of(family, group);
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

  Draws& draws_;
  std::vector<Program> classes_;
  int line_ = 0;  // group along which messages run
  std::vector<ArrayPair> pairs_;
  std::vector<Rotation> rotations_;                    // [array]
  std::vector<std::vector<std::vector<Node>*>> open_;  // [class] innermost body last
  std::vector<std::vector<Value>> values_;             // [array][index]
};

/// Programs of all classes of a world of `ranks` ranks; the same for the same arguments.
inline std::vector<Program> random_program(uint64_t seed, int64_t ranks) {
  Draws draws(seed);
  const RandomWorld world(draws, ranks);
  return RandomProgram(draws, world).take();
}

}  // namespace strait::program
