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

const std::vector<std::string>& ProgramSet::next(const std::string& purpose,
                                                 const std::string& after,
                                                 const ReadScalar& read) const {
  for (const Rule& rule : rules) {
    if (rule.purpose != purpose || (rule.after != "*" && rule.after != after)) continue;
    if (rule.unless_zero.array.empty() || read(rule.unless_zero) != 0.0) return rule.kinds;
  }
  throw InternalError("no rule says what runs for the purpose " + purpose + " after '" + after +
                      "'");
}

const Program& class_of(const std::vector<Program>& classes, int64_t rank) {
  for (const Program& program : classes)
    if (program.members.empty() || std::ranges::count(program.members, rank) > 0) return program;
  throw InternalError("rank " + std::to_string(rank) + " is in no rank class");
}

}  // namespace strait::program
