// What the checks of the verifier share: the classes under check and the list of problems found.
#pragma once

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "strait/program/classes.h"
#include "strait/program/program.h"
#include "strait/program/program_set.h"
#include "strait/verify/verify.h"

namespace strait::program {

/// Problems in the order found. Each kind is reported once per operation and array, at most kMost
/// in all.
class Findings {
 public:
  static constexpr size_t kMost = 50;

  explicit Findings(const std::vector<Program>& classes) : classes_(classes) {}

  /// Where a problem is: the op, the loop variables if an executed instance is meant, the array.
  struct Site {
    int64_t rank_class = 0;
    const Op* op = nullptr;
    const std::vector<int64_t>* loops = nullptr;
    int array = -1;
  };

  /// Adds "<program>/<step kind>, rank class c, loop i: <sentence>" unless reported before.
  void add(const std::string& kind, const Site& site, const std::string& sentence,
           const std::string& other = "");
  bool empty() const { return problems_.empty(); }
  bool full() const { return problems_.size() >= kMost; }
  std::vector<Problem> take() { return std::move(problems_); }

  const std::vector<Program>& classes() const { return classes_; }
  /// "zero3/steady, rank class 0, loop i"; the loop only where `op` lies in one.
  std::string place(int64_t rank_class, const Op* op) const;
  /// `W[i] = all_gather(w[i])`, quoted, without stream and waits.
  std::string quote(int64_t rank_class, const Op& op,
                    const std::vector<int64_t>* loops = nullptr) const;
  /// Name of a value: "W[3]".
  std::string value_name(int64_t rank_class, int array, int64_t index) const;

 private:
  const std::vector<Program>& classes_;
  std::vector<Problem> problems_;
  std::set<std::tuple<std::string, int64_t, const Op*, int>> seen_;
};

/// Names of the arrays that some op of a program touches.
std::set<std::string> touched_arrays(const Program& program);

/// Text of the n-th executed op of `program` (from 0).
std::string instance_text(const Program& program, int64_t instance);

// The checks, in the order in which they run; later ones rely on earlier ones having found nothing.

/// malformed, out-of-range: one program by itself, without executing it; then the classes together.
void check_structure(int64_t rank_class, Findings& findings);
void check_classes(Findings& findings);
/// malformed: the groups of one program. group-members: groups of one name, or with a group of
/// ranks in common, that differ between the programs of two classes.
void check_groups(Findings& findings);
/// read-before-write, use-after-free, not-freed, double-free, concurrent-write: values of one
/// program.
void check_values(int64_t rank_class, Findings& findings);
/// unmatched-message, collective-order: between the ranks of each group.
void check_messages(Findings& findings);
/// cycle: all ranks together, every transfer taken to end only once all its ranks have started it.
void check_cycles(Findings& findings);
/// carry: the borders of a set's table, turn by turn.
void check_turns(const ProgramSet& set, std::vector<Problem>& problems);

}  // namespace strait::program
