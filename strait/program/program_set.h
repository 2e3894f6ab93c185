// All programs of a run and the table that says which of them run next.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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

/// `length` steps of every `period`, from step `first` on.
struct Turns {
  int64_t first = 0, period = 0, length = 1;
  bool hold(int64_t step) const {
    return period > 0 && step >= first && (step - first) % period < length;
  }
};

/// One row of the table. It holds when the purpose is asked for, when `after` ran last (in this
/// process), and, where a scalar is named, when that is not zero. A row with turns holds in those
/// alone and is about borders: its kinds run behind those of the row that decides, unless they hold
/// the step, too.
struct Rule {
  std::string purpose;      // "step", "evaluation"
  std::string after = "*";  // a kind; "" = nothing ran yet; "*" = whatever ran
  std::optional<AgreedScalar> unless_zero{};
  std::vector<std::string> kinds;  // run one after another
  Turns turns{};
  bool holds_step = false;  // with turns: its kinds hold the step, too, so that it decides
  bool adds() const { return turns.period > 0 && !holds_step; }
};

/// Where a run stands when the table is asked: what ran last, and the step that is under way or
/// comes next, from 0.
struct Turn {
  const std::string& after;
  int64_t step = 0;
};

struct ProgramSet {
  /// What a run, new or resumed, asks for before its first step, and behind its last one.
  static constexpr const char* kStart = "start";
  static constexpr const char* kEnd = "end";
  std::vector<StepKind> kinds;
  std::vector<Rule> rules;  // the first that holds decides; all that add and hold come behind it

  const StepKind* find(const std::string& kind) const;
  /// The classes of a kind; InternalError when there is none of that name.
  const std::vector<Program>& classes(const std::string& kind) const;
  /// The program that `rank` runs in a kind.
  const Program& program(const std::string& kind, int64_t rank) const;
  /// Fills `names` with the kinds that run next for a purpose; all ranks get the same, because they
  /// read agreed scalars and count the same steps.
  void next(const std::string& purpose, const Turn& turn, const ReadScalar& read,
            std::vector<const std::string*>& names) const;
};

/// The class that `rank` belongs to.
const Program& class_of(const std::vector<Program>& classes, int64_t rank);

}  // namespace strait::program
