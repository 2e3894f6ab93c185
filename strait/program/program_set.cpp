#include "strait/program/program_set.h"

#include <algorithm>

#include "strait/base/errors.h"

namespace strait::program {

const StepKind* ProgramSet::find(const std::string& kind) const {
  const auto found = std::ranges::find(kinds, kind, &StepKind::name);
  return found == kinds.end() ? nullptr : &*found;
}

const std::vector<Program>& ProgramSet::classes(const std::string& kind) const {
  const StepKind* found = find(kind);
  if (found == nullptr) throw InternalError("there is no program of the kind " + kind);
  return found->classes;
}

const Program& ProgramSet::program(const std::string& kind, int64_t rank) const {
  return class_of(classes(kind), rank);
}

void ProgramSet::next(const std::string& purpose, const Turn& turn, const ReadScalar& read,
                      std::vector<const std::string*>& names) const {
  names.clear();
  const auto take = [&](const Rule& rule) {
    for (const std::string& kind : rule.kinds) names.push_back(&kind);
  };
  const auto decides = std::ranges::find_if(rules, [&](const Rule& rule) {
    return !rule.adds() && rule.purpose == purpose &&
           (rule.turns.period == 0 || rule.turns.hold(turn.step)) &&
           (rule.after == "*" || rule.after == turn.after) &&
           (!rule.unless_zero || read(*rule.unless_zero) != 0.0);
  });
  if (decides == rules.end())
    throw InternalError("no rule says what runs for the purpose " + purpose + " after '" +
                        turn.after + "'");
  take(*decides);
  for (const Rule& rule : rules)
    if (rule.adds() && rule.purpose == purpose && rule.turns.hold(turn.step)) take(rule);
}

const Program& class_of(const std::vector<Program>& classes, int64_t rank) {
  for (const Program& program : classes)
    if (program.members.empty() || std::ranges::count(program.members, rank) > 0) return program;
  throw InternalError("rank " + std::to_string(rank) + " is in no rank class");
}

}  // namespace strait::program
