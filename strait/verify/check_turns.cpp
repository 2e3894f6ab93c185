// Whether the borders of a set's table take every carry that they leave, once, and in time: the
// turns are walked one by one until they repeat.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "strait/verify/findings.h"

namespace strait::program {
namespace {

constexpr int64_t kMostTurns = 1 << 16;

/// What the programs of a kind take over, leave under way, do both with, and touch without either,
/// by array, whatever their class.
struct Carried {
  std::set<std::string> takes, leaves, hands_on, uses;
};

Carried carried(const StepKind& kind) {
  Carried found;
  for (const Program& program : kind.classes) {
    const std::set<std::string> touched = touched_arrays(program);
    for (const ValueArray& array : program.arrays) {
      if (array.lifetime == Lifetime::kResident && touched.contains(array.name))
        found.uses.insert(array.name);
      if (array.lifetime == Lifetime::kCarryIn) found.takes.insert(array.name);
      if (array.lifetime == Lifetime::kCarryOut) found.leaves.insert(array.name);
      if (array.lifetime == Lifetime::kCarry) found.hands_on.insert(array.name);
    }
  }
  return found;
}

class TurnCheck {
 public:
  TurnCheck(const ProgramSet& set, std::vector<Problem>& problems)
      : set_(set), problems_(problems) {
    for (const StepKind& kind : set.kinds) {
      Carried its = carried(kind);
      spanning_.insert(its.takes.begin(), its.takes.end());
      spanning_.insert(its.leaves.begin(), its.leaves.end());
      carried_[kind.name] = std::move(its);
    }
  }

  /// The borders of a purpose, from the first step on. A run that starts at a step must launch what
  /// is under way there, and one that ends there must take it over.
  void walk(const std::string& purpose) {
    const int64_t turns = spanning_.empty() ? 0 : turns_of(purpose);
    for (int64_t step = 0; step < turns && problems_.empty(); ++step) {
      compare(step, ProgramSet::kStart, &Carried::leaves,
              "but a run that starts there does not launch it");
      compare(step, ProgramSet::kEnd, &Carried::takes,
              "but a run that ends there does not take it over");
      for (const Rule& rule : set_.rules)
        if (rule.purpose == purpose && rule.turns.period == 0)
          for (const std::string& kind : rule.kinds) use(kind, step);
      for (const bool adds : {false, true})
        for (const Rule& rule : set_.rules)
          if (rule.purpose == purpose && rule.adds() == adds && rule.turns.hold(step))
            for (const std::string& kind : rule.kinds) run(kind, step);
    }
  }

 private:
  int64_t turns_of(const std::string& purpose) const {
    int64_t first = 0, period = 1;
    for (const Rule& rule : set_.rules) {
      if (rule.purpose != purpose || rule.turns.period == 0) continue;
      first = std::max(first, rule.turns.first);
      period = std::lcm(period, rule.turns.period);
    }
    return std::min(first + 2 * period, kMostTurns);
  }

  /// What the kinds of another purpose take or leave at a step.
  std::set<std::string> carried_at(const std::string& purpose, int64_t step,
                                   std::set<std::string> Carried::*what) const {
    std::set<std::string> all;
    for (const Rule& rule : set_.rules)
      if (rule.purpose == purpose && rule.turns.hold(step))
        for (const std::string& kind : rule.kinds)
          all.insert((carried_.at(kind).*what).begin(), (carried_.at(kind).*what).end());
    return all;
  }

  void problem(const std::string& sentence) { problems_.push_back({"carry", "", "", sentence}); }

  void compare(int64_t step, const char* purpose, std::set<std::string> Carried::*what,
               const char* missing) {
    const std::set<std::string> there = carried_at(purpose, step, what);
    for (const std::string& name : under_way_)
      if (!there.contains(name))
        problem(fmt::format("carry {} is under way before step {}, {}", name, step, missing));
    for (const std::string& name : there)
      if (!under_way_.contains(name))
        problem(
            fmt::format("carry {} is named by the purpose {} before step {}, but is not under "
                        "way there",
                        name, purpose, step));
  }

  void use(const std::string& kind, int64_t step) {
    for (const std::string& name : carried_.at(kind).uses)
      if (under_way_.contains(name))
        problem(fmt::format("carry {} is used by {} in step {} without being taken over", name,
                            kind, step));
  }

  void run(const std::string& kind, int64_t step) {
    use(kind, step);
    const Carried& its = carried_.at(kind);
    for (const std::string& name : its.takes)
      if (under_way_.erase(name) == 0)
        problem(fmt::format("carry {} is taken by {} in step {}, but nothing has left it", name,
                            kind, step));
    for (const std::string& name : its.leaves)
      if (!under_way_.insert(name).second)
        problem(fmt::format("carry {} is left by {} in step {} while it is still under way", name,
                            kind, step));
    for (const std::string& name : its.hands_on)
      if (spanning_.contains(name)) under_way_.insert(name);
  }

  const ProgramSet& set_;
  std::vector<Problem>& problems_;
  std::map<std::string, Carried> carried_;  // by kind
  std::set<std::string> spanning_;          // carries that pass from one kind to another
  std::set<std::string> under_way_;
};

}  // namespace

void check_turns(const ProgramSet& set, std::vector<Problem>& problems) {
  std::set<std::string> purposes;
  for (const Rule& rule : set.rules)
    if (rule.turns.period > 0 && rule.purpose != ProgramSet::kStart &&
        rule.purpose != ProgramSet::kEnd)
      purposes.insert(rule.purpose);
  for (const std::string& purpose : purposes)
    if (problems.empty()) TurnCheck(set, problems).walk(purpose);
}

}  // namespace strait::program
