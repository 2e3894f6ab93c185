// All programs of a run and the table that says which of them run next.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strait/program/program.h"

namespace strait::program {

/// The programs of one kind of step, one per rank class. A kind exists only where transfers differ.
struct StepKind {
  std::string name;  // "steady"; that of its programs
  std::vector<Program> classes;
};

/// A scalar that all ranks agree on: an element of a resident value of fp64.
struct AgreedScalar {
  std::string array;
  int64_t element = 0;
};
using ReadScalar = std::function<double(const AgreedScalar&)>;

/// One row of the table. It holds when the purpose is asked for, when `after` ran last (in this
/// process), and, where a scalar is named, when that is not zero.
struct Rule {
  std::string purpose;             // "step", "evaluation"
  std::string after = "*";         // a kind; "" = nothing ran yet; "*" = whatever ran
  AgreedScalar unless_zero{};      // without an array: no condition
  std::vector<std::string> kinds;  // run one after another: the step, then what its border asks for
};

struct ProgramSet {
  std::vector<StepKind> kinds;
  std::vector<Rule> rules;  // the first that holds decides

  const StepKind* find(const std::string& kind) const;
  /// The classes of a kind; InternalError when there is none of that name.
  const std::vector<Program>& classes(const std::string& kind) const;
  /// The program that `rank` runs in a kind.
  const Program& program(const std::string& kind, int64_t rank) const;
  /// The kinds that run next for a purpose; all ranks get the same, because they read agreed
  /// scalars.
  const std::vector<std::string>& next(const std::string& purpose, const std::string& after,
                                       const ReadScalar& read) const;
};

/// The class that `rank` belongs to.
const Program& class_of(const std::vector<Program>& classes, int64_t rank);

}  // namespace strait::program
