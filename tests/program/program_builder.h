// Short ways to write programs down in tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "strait/program/program.h"
#include "tests/program/test_kernels.h"

namespace strait::program {

/// Declares arrays and appends operations to the innermost open repeat of one program.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(int64_t ranks, std::vector<int64_t> members = {}) {
    program_.name = "test";
    program_.step_kind = "steady";
    program_.ranks = ranks;
    program_.members = std::move(members);
    program_.streams = {{"compute", 0}, {"world", 0}, {"world", 1}, {"world", 2}};
    program_.groups = {{"world", ranks, 1, 0}};
    open_ = {&program_.body};
  }

  int group(const std::string& name, int64_t size, int64_t stride) {
    program_.groups.push_back({name, size, stride, 0});
    return static_cast<int>(program_.groups.size()) - 1;
  }

  int lists(const std::string& name, std::vector<std::vector<int64_t>> lists) {
    const int64_t size = static_cast<int64_t>(lists.front().size());
    program_.groups.push_back({name, size, 1, 0, {}, MemberLists(std::move(lists))});
    return static_cast<int>(program_.groups.size()) - 1;
  }

  /// A value of `elements` fp32, whole (group < 0) or split evenly over the group.
  int array(const std::string& name, int64_t count, Lifetime lifetime, int64_t elements,
            int group = -1) {
    ValueArray array;
    array.name = name;
    array.count = count;
    array.lifetime = lifetime;
    array.group = group;
    array.partition = split(elements, group);
    program_.arrays.push_back(array);
    return static_cast<int>(program_.arrays.size()) - 1;
  }

  Partition split(int64_t elements, int group) const {
    if (group < 0) return {elements, elements};
    const int64_t size = program_.groups[group].size;
    return {elements, (elements + size - 1) / size};
  }

  /// Opens a repeat; returns the loop.
  int repeat(const std::string& variable, int64_t first, int64_t count, int64_t step = 1) {
    Repeat repeat;
    repeat.variable = variable;
    repeat.loop = program_.num_loops++;
    repeat.first = first;
    repeat.count = count;
    repeat.step = step;
    open_.back()->emplace_back(repeat);
    open_.push_back(&std::get<Repeat>(open_.back()->back()).body);
    return repeat.loop;
  }
  void end() { open_.pop_back(); }

  Op& add(OpKind kind, std::vector<Operand> reads, std::vector<Operand> writes,
          int stream = kCompute, int group = 0) {
    Op op = make_op(kind, std::move(reads), std::move(writes), stream);
    if (stream != kCompute) op.group = group;
    const bool gathers = kind == OpKind::kAllGather;
    if (gathers || kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll) {
      const int whole = gathers ? op.writes[0].array : op.reads[0].array;
      op.partition = split(program_.arrays[whole].partition.elements, group);
    }
    return add(std::move(op));
  }
  Op& add(Op op) {
    open_.back()->emplace_back(std::move(op));
    return std::get<Op>(open_.back()->back());
  }
  Op& touch(std::vector<Operand> reads, std::vector<Operand> writes) {
    return add(touch_op(std::move(reads), std::move(writes)));
  }
  Op& free(Operand operand) { return add(OpKind::kFree, {}, {operand}); }
  Op& send(Operand operand, int64_t peer, int stream, int group = 0) {
    Op& op = add(OpKind::kSend, {operand}, {}, stream, group);
    op.peer.constant = peer;
    return op;
  }
  Op& receive(Operand operand, int64_t peer, int stream, int group = 0) {
    Op& op = add(OpKind::kReceive, {}, {operand}, stream, group);
    op.peer.constant = peer;
    return op;
  }

  Program take() { return std::move(program_); }

 private:
  Program program_;
  std::vector<std::vector<Node>*> open_;
};

}  // namespace strait::program
