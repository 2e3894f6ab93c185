#include "strait/strategy/compose/round.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "strait/base/errors.h"

namespace strait::strategy {
namespace {

using program::Group;
using program::Index;
using program::Lifetime;
using program::Node;
using program::Op;
using program::Operand;
using program::Program;
using program::ProgramSet;
using program::Repeat;
using program::Rule;
using program::ValueArray;

/// A border that comes up only once is no part of a round.
constexpr int64_t kMostSteps = 1 << 16;

/// One step of a round and the kinds at its border.
struct Turn {
  std::string step;  // "" = the set's first kind
  std::vector<std::string> borders;
  bool idle = false;
  bool plain() const { return step.empty() && borders.empty(); }
  bool operator==(const Turn&) const = default;
};

using Names = std::set<std::string>;

Names carried(const program::StepKind& kind, Lifetime lifetime) {
  Names names;
  for (const Program& program : kind.classes)
    for (const ValueArray& array : program.arrays)
      if (array.lifetime == lifetime) names.insert(array.name);
  return names;
}

/// The turns of one round, and what is under way where it begins.
class Turns {
 public:
  explicit Turns(const ProgramSet& set) : set_(set) {
    for (const Rule& rule : set.rules)
      if (rule.turns.period > 0 && rule.purpose != ProgramSet::kStart &&
          rule.purpose != ProgramSet::kEnd && rule.turns.period <= kMostSteps)
        rules_.push_back(&rule);
    int64_t first = 0;
    for (const Rule* rule : rules_) {
      first = std::max(first, rule->turns.first);
      period_ = std::lcm(period_, rule->turns.period);
    }
    // The second time around it is known what the first one leaves.
    for (int64_t step = first; step < first + 2 * period_; ++step) {
      if (step == first + period_) turns_.clear(), at_begin_ = under_way_;
      add(step);
    }
  }

  const std::vector<Turn>& turns() const { return turns_; }
  const Names& at_begin() const { return at_begin_; }

 private:
  void add(int64_t step) {
    Turn turn;
    turn.idle = under_way_.empty();
    for (const Rule* rule : rules_) {
      if (!rule->turns.hold(step)) continue;
      if (rule->holds_step)
        turn.step = rule->kinds.front();
      else
        turn.borders.insert(turn.borders.end(), rule->kinds.begin(), rule->kinds.end());
    }
    turn.idle = turn.idle && turn.plain();
    if (!turn.step.empty()) follow(turn.step);
    for (const std::string& name : turn.borders) follow(name);
    turns_.push_back(std::move(turn));
  }
  void follow(const std::string& name) {
    const program::StepKind& kind = *set_.find(name);
    for (const std::string& taken : carried(kind, Lifetime::kCarryIn)) under_way_.erase(taken);
    under_way_.merge(carried(kind, Lifetime::kCarryOut));
    under_way_.merge(borders_carries(kind));
  }
  /// What a border takes and leaves again; the step's own carries end within a step.
  Names borders_carries(const program::StepKind& kind) const {
    Names names = carried(kind, Lifetime::kCarry);
    for (const std::string& own : carried(set_.kinds.front(), Lifetime::kCarry)) names.erase(own);
    return names;
  }

  const ProgramSet& set_;
  std::vector<const Rule*> rules_;
  int64_t period_ = 1;
  std::vector<Turn> turns_;
  Names under_way_, at_begin_;
};

/// Programs of one class, one behind another.
class Joined {
 public:
  Joined(const Program& step, const Names& across) : across_(across) {
    program_.name = step.name;
    program_.step_kind = "round";
    program_.ranks = step.ranks;
    program_.members = step.members;
    program_.streams = {step.streams.front()};
  }

  void add(const Program& part, int64_t times) {
    Part its{part, {}, {}, {}, program_.num_loops};
    for (const Group& group : part.groups) its.groups.push_back(add_group(group));
    for (const ValueArray& array : part.arrays) its.arrays.push_back(add_array(array, its));
    add_streams(its);
    program_.num_loops += part.num_loops;
    program_.tokens += part.tokens * times;
    std::vector<Node> body = part.body;
    for (Node& node : body) rename(node, its);
    if (times == 1) {
      std::ranges::move(body, std::back_inserter(program_.body));
      return;
    }
    Repeat repeat;
    repeat.variable = "t";
    repeat.loop = program_.num_loops++;
    repeat.count = times;
    repeat.body = std::move(body);
    program_.body.push_back(std::move(repeat));
  }

  Program take() { return std::move(program_); }

 private:
  /// Numbers of a part in the whole.
  struct Part {
    const Program& program;
    std::vector<int> groups, arrays, streams;
    int first_loop = 0;
  };

  /// Programs name a group of the same members by what each first needed it for.
  int add_group(const Group& group) {
    const auto found = std::ranges::find_if(program_.groups, [&](Group other) {
      other.name = group.name;
      return other == group;
    });
    if (found != program_.groups.end()) return static_cast<int>(found - program_.groups.begin());
    program_.groups.push_back(group);
    return static_cast<int>(program_.groups.size()) - 1;
  }

  int add_array(ValueArray array, const Part& part) {
    if (array.group >= 0) array.group = part.groups[static_cast<size_t>(array.group)];
    const bool passes =
        array.lifetime == Lifetime::kCarryIn || array.lifetime == Lifetime::kCarryOut;
    if (passes) array.lifetime = Lifetime::kResident;
    if (across_.contains(array.name)) array.lifetime = Lifetime::kCarry;
    const auto found = std::ranges::find(program_.arrays, array.name, &ValueArray::name);
    if (found == program_.arrays.end()) {
      program_.arrays.push_back(std::move(array));
      return static_cast<int>(program_.arrays.size()) - 1;
    }
    if (*found != array)
      throw InternalError("round: programs of a set disagree about " + array.name);
    return static_cast<int>(found - program_.arrays.begin());
  }

  /// A stream of a part is one of the whole when it serves the same group: transfers of others do
  /// not wait for each other.
  void add_streams(Part& part) {
    std::vector<int> serves(part.program.streams.size(), -1);
    program::for_each_op(part.program.body, [&](const Op& op) {
      if (program::is_communication(op.kind))
        serves[static_cast<size_t>(op.stream)] = part.groups[static_cast<size_t>(op.group)];
    });
    part.streams = {program::kCompute};
    for (size_t at = 1; at < serves.size(); ++at) {
      const program::Stream& stream = part.program.streams[at];
      const auto [known, fresh] =
          streams_.try_emplace({stream.resource, stream.lane, serves[at]}, -1);
      if (fresh) {
        const int64_t lane =
            std::ranges::count(program_.streams, stream.resource, &program::Stream::resource);
        known->second = static_cast<int>(program_.streams.size());
        program_.streams.push_back({stream.resource, lane});
      }
      part.streams.push_back(known->second);
    }
  }

  static void rename(Index& index, const Part& part) {
    for (int* loop : {&index.loop, &index.other_loop})
      if (*loop >= 0) *loop += part.first_loop;
  }
  static void rename(Node& node, const Part& part) {
    if (auto* repeat = std::get_if<Repeat>(&node)) {
      repeat->loop += part.first_loop;
      for (int& array : repeat->carried) array = part.arrays[static_cast<size_t>(array)];
      for (Node& inner : repeat->body) rename(inner, part);
      return;
    }
    Op& op = std::get<Op>(node);
    op.stream = part.streams[static_cast<size_t>(op.stream)];
    if (op.group >= 0) op.group = part.groups[static_cast<size_t>(op.group)];
    rename(op.peer, part);
    for (auto* operands : {&op.reads, &op.writes, &op.waits})
      for (Operand& operand : *operands) {
        operand.array = part.arrays[static_cast<size_t>(operand.array)];
        rename(operand.index, part);
      }
    for (program::Attribute& attribute : op.attributes)
      if (auto* index = std::get_if<Index>(&attribute)) rename(*index, part);
  }

  const Names& across_;
  Program program_;
  std::map<std::tuple<std::string, int64_t, int>, int> streams_;
};

}  // namespace

Round round_of(const ProgramSet& set) {
  const std::vector<Program>& step = set.kinds.front().classes;
  const Turns turns(set);
  if (std::ranges::all_of(turns.turns(), &Turn::plain)) return {step};
  Round round;
  round.steps = static_cast<int64_t>(turns.turns().size());
  round.idle_steps = std::ranges::count(turns.turns(), true, &Turn::idle);
  for (size_t c = 0; c < step.size(); ++c) {
    Joined joined(step[c], turns.at_begin());
    for (auto turn = turns.turns().begin(); turn != turns.turns().end();) {
      const auto next = std::find_if(turn, turns.turns().end(),
                                     [&](const Turn& other) { return other != *turn; });
      const int64_t alike = turn->plain() ? next - turn : 1;
      if (!turn->idle) joined.add((turn->step.empty() ? step : set.classes(turn->step))[c], alike);
      for (const std::string& border : turn->borders) joined.add(set.classes(border)[c], 1);
      turn += alike;
    }
    round.classes.push_back(joined.take());
  }
  return round;
}

}  // namespace strait::strategy
