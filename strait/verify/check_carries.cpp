// Whether carries match across the kinds of a set: what one program leaves in flight, a program
// that may follow it takes over, once.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "strait/program/program_set.h"
#include "strait/verify/findings.h"
#include "strait/verify/verify.h"

namespace strait::program {

namespace {

bool takes(Lifetime lifetime) {
  return lifetime == Lifetime::kCarryIn || lifetime == Lifetime::kCarry;
}
bool leaves(Lifetime lifetime) {
  return lifetime == Lifetime::kCarryOut || lifetime == Lifetime::kCarry;
}

class CarryCheck {
 public:
  explicit CarryCheck(const ProgramSet& set) : set_(set) {}

  std::vector<Problem> run() {
    for (const StepKind& kind : set_.kinds) {
      for (size_t c = 0; c < kind.classes.size(); ++c) {
        for (const ValueArray& array : kind.classes[c].arrays) {
          if (leaves(array.lifetime)) left_over(kind, c, array);
          if (array.lifetime == Lifetime::kCarryIn) taken(kind, c, array);
        }
      }
    }
    return std::move(problems_);
  }

 private:
  /// Whether a turn may end with `kind`, so that the table is asked after it.
  bool ends_a_turn(const StepKind& kind) const {
    return std::ranges::any_of(set_.rules, [&](const Rule& rule) {
      return !rule.kinds.empty() && rule.kinds.back() == kind.name;
    });
  }

  /// Kinds that may run right after `kind`, borders aside: check_turns follows these.
  std::vector<const StepKind*> successors(const StepKind& kind) const {
    const bool asks = ends_a_turn(kind);
    std::set<std::string> names;
    for (const Rule& rule : set_.rules) {
      if (rule.turns.period > 0) continue;
      if (asks && (rule.after == "*" || rule.after == kind.name) && !rule.kinds.empty())
        names.insert(rule.kinds.front());
      for (size_t i = 0; i + 1 < rule.kinds.size(); ++i)
        if (rule.kinds[i] == kind.name) names.insert(rule.kinds[i + 1]);
    }
    std::vector<const StepKind*> kinds;
    for (const std::string& name : names)
      if (const StepKind* found = set_.find(name)) kinds.push_back(found);
    return kinds;
  }

  static const ValueArray* find_array(const StepKind& kind, size_t rank_class,
                                      const std::string& name) {
    if (rank_class >= kind.classes.size()) return nullptr;
    const auto& arrays = kind.classes[rank_class].arrays;
    const auto found = std::ranges::find(arrays, name, &ValueArray::name);
    return found == arrays.end() ? nullptr : &*found;
  }

  void problem(const StepKind& kind, size_t rank_class, const std::string& sentence) {
    problems_.push_back({"carry", "", "",
                         fmt::format("{}/{}, rank class {}: {}", kind.classes[rank_class].name,
                                     kind.name, rank_class, sentence)});
  }

  void left_over(const StepKind& kind, size_t rank_class, const ValueArray& array) {
    bool taken = false;
    for (const StepKind& other : set_.kinds) {
      const ValueArray* there = find_array(other, rank_class, array.name);
      taken = taken || (there != nullptr && takes(there->lifetime));
    }
    if (!taken)
      return problem(kind, rank_class,
                     fmt::format("carry {} has no taker: no kind takes it over", array.name));
    for (const StepKind* next : successors(kind)) {
      const ValueArray* there = find_array(*next, rank_class, array.name);
      if (there == nullptr || takes(there->lifetime) ||
          !touched_arrays(next->classes[rank_class]).contains(array.name))
        continue;
      problem(
          kind, rank_class,
          fmt::format("carry {} has no taker: {}, which may follow, uses it without taking it over",
                      array.name, next->name));
    }
  }

  /// A carry that is taken and not left again is spent.
  void taken(const StepKind& kind, size_t rank_class, const ValueArray& array) {
    for (const StepKind* next : successors(kind)) {
      const ValueArray* there = find_array(*next, rank_class, array.name);
      if (there == nullptr || !takes(there->lifetime)) continue;
      problem(kind, rank_class,
              fmt::format("carry {} is taken twice: here, and again by {}, which may follow",
                          array.name, next->name));
    }
  }

  const ProgramSet& set_;
  std::vector<Problem> problems_;
};

}  // namespace

std::set<std::string> touched_arrays(const Program& program) {
  std::set<std::string> names;
  for_each_op(program.body, [&](const Op& op) {
    for (const auto* operands : {&op.reads, &op.writes, &op.waits})
      for (const Operand& operand : *operands) names.insert(program.arrays[operand.array].name);
  });
  return names;
}

std::vector<Problem> verify(const ProgramSet& set) {
  std::vector<Problem> problems;
  for (const StepKind& kind : set.kinds) {
    const std::vector<Problem> found = verify(kind.classes);
    problems.insert(problems.end(), found.begin(), found.end());
  }
  if (!problems.empty()) return problems;
  problems = CarryCheck(set).run();
  check_turns(set, problems);
  return problems;
}

void verify_or_throw(const ProgramSet& set) { throw_first(verify(set)); }

}  // namespace strait::program
