// Programs executed plainly: all ranks by turns on one thread, every op awaited before the next.
// What legal programs compute does not depend on when transfers end, so the interpreter must agree.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "strait/program/program.h"

namespace strait::runtime {

/// A value's elements, each as its dtype would hold it.
using Numbers = std::vector<double>;

/// What the kernel kTouch computes for one element of what it changes, from what it held before and
/// the sum over the operands that it only reads. Whole numbers as long as they fit the dtype.
double touched_number(program::Access access, double before, double read, double salt);

/// `value` as a number of that type, fp32 or fp64.
double rounded(Dtype dtype, double value);

class ReferenceRun {
 public:
  explicit ReferenceRun(int64_t ranks) : residents_(static_cast<size_t>(ranks)) {}

  /// Runs the programs of all classes once; values that outlive them stay for the next call.
  /// Returns the number of operations that all ranks have executed.
  int64_t run(const std::vector<program::Program>& classes, const program::Counters& counters);

  /// The resident values of a rank by name and index. They start as zeros.
  using Residents = std::map<std::pair<std::string, int64_t>, Numbers>;
  const Residents& residents(int64_t rank) const { return residents_[static_cast<size_t>(rank)]; }

 private:
  std::vector<Residents> residents_;
};

}  // namespace strait::runtime
