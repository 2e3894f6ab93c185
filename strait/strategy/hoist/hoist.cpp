#include "strait/strategy/hoist/hoist.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "strait/program/roll.h"

namespace strait::strategy {
namespace {

using program::Node;
using program::Op;
using program::Operand;
using program::Program;
using program::Repeat;

/// Transfers of gradients that are under way at once where something waits for them.
constexpr size_t kUnderWay = 2;

/// A place in the head: behind so many of its operations.
using Place = size_t;
using Value = std::pair<int, int64_t>;  // array, index

/// A loop over micro-steps holds others.
bool is_micro_steps(const Node& node) {
  const auto* repeat = std::get_if<Repeat>(&node);
  return repeat != nullptr && std::ranges::any_of(repeat->body, [](const Node& inner) {
           return std::holds_alternative<Repeat>(inner);
         });
}

std::vector<Node> unrolled(const Program& program, std::vector<Node>::const_iterator begin,
                           std::vector<Node>::const_iterator end) {
  Program part;
  part.num_loops = program.num_loops;
  part.body.assign(begin, end);
  return program::unroll(part).body;
}

/// The operations of the last micro-step, and where those behind it may go.
class Head {
 public:
  explicit Head(const std::vector<Node>& ops) : end_(ops.size()) {
    for (Place at = 0; at < end_; ++at) {
      const Op& op = std::get<Op>(ops[at]);
      const bool transfer = program::is_communication(op.kind);
      if (transfer) starts_[op.stream].push_back(at);
      note(op, at + 1, transfer ? op.stream : -1);
    }
  }

  /// The earliest place of the next operation of the tail.
  Place place(const Op& op) {
    const bool transfer = program::is_communication(op.kind);
    Place place = 0;
    for_each_touch(op, [&](const Value& value, bool changes) {
      const Touched& touched = touched_[value];
      place = std::max(place, touched.changed);
      if (changes) place = std::max(place, touched.read);
      if (!transfer) place = std::max(place, arrival(touched));
    });
    note(op, place, transfer ? kOfTail : -1);
    return place;
  }

 private:
  static constexpr int kOfTail = -2;
  struct Touched {
    Place changed = 0, read = 0;  // behind the last operation that did
    int stream = -1;              // of the transfer that changed it last
  };

  template <class Visit>
  static void for_each_touch(const Op& op, const Visit& visit) {
    for (const Operand& operand : op.reads) visit({operand.array, operand.index.constant}, false);
    for (const Operand& operand : op.waits) visit({operand.array, operand.index.constant}, false);
    for (const Operand& operand : op.writes) visit({operand.array, operand.index.constant}, true);
  }

  void note(const Op& op, Place place, int stream) {
    for_each_touch(op, [&](const Value& value, bool changes) {
      Touched& touched = touched_[value];
      touched.read = std::max(touched.read, place);
      if (!changes) return;
      touched.changed = std::max(touched.changed, place);
      touched.stream = stream;
    });
  }

  /// Where a kernel may wait for what a transfer brings.
  Place arrival(const Touched& touched) const {
    if (touched.stream == -1) return 0;
    if (touched.stream == kOfTail) return end_;
    const std::vector<Place>& starts = starts_.at(touched.stream);
    const auto next = std::ranges::lower_bound(starts, touched.changed);
    const auto left = static_cast<size_t>(starts.end() - next);
    return left < kUnderWay ? end_ : next[kUnderWay - 1] + 1;
  }

  const Place end_;
  std::map<Value, Touched> touched_;
  std::map<int, std::vector<Place>> starts_;  // of transfers, by stream
};

}  // namespace

void hoist(Program& program, size_t tail) {
  const auto begin_of_tail = program.body.begin() + static_cast<std::ptrdiff_t>(tail);
  auto begin = begin_of_tail;
  while (begin != program.body.begin() && !is_micro_steps(*std::prev(begin))) --begin;
  std::vector<Node> head = unrolled(program, begin, begin_of_tail);
  std::multimap<Place, Node> moved;  // equal places keep the order of insertion
  Head places(head);
  for (Node& node : unrolled(program, begin_of_tail, program.body.end())) {
    const Place place = places.place(std::get<Op>(node));
    moved.emplace(place, std::move(node));
  }
  std::vector<Node> woven;
  auto next = moved.begin();
  for (Place at = 0; at <= head.size(); ++at) {
    for (; next != moved.end() && next->first == at; ++next)
      woven.push_back(std::move(next->second));
    if (at < head.size()) woven.push_back(std::move(head[at]));
  }
  program.body.erase(begin, program.body.end());
  std::ranges::move(program::roll(std::move(woven), program.num_loops, "i", program.arrays),
                    std::back_inserter(program.body));
}

}  // namespace strait::strategy
