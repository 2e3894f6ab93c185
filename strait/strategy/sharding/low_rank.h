// A gradient that is reduced as factors of low rank (compression/low_rank.h): how the matrices of a
// unit lie in the factors, and the table entries of what stands between the two all-reduces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/codec/runs.h"
#include "strait/program/program.h"
#include "strait/shape/shape.h"

namespace strait::strategy {

/// Neighbours in a unit: a matrix that has factors, or numbers that are summed as they are, which
/// stand among the left factors.
struct LowRankRun {
  int64_t elements = 0;
  int64_t rows = 0, rank = 0;  // 0: as they are
  int64_t most = 0;            // rank that there is room for between steps
  int64_t columns() const { return elements / rows; }
  int64_t left_elements() const { return rank > 0 ? rows * rank : elements; }
  int64_t right_elements() const { return rank > 0 ? columns() * rank : 0; }
  int64_t kept_elements() const { return rank > 0 ? columns() * most : 0; }
  bool operator==(const LowRankRun&) const = default;
};
using LowRankUnit = std::vector<LowRankRun>;

int64_t left_elements(const LowRankUnit& unit);
int64_t right_elements(const LowRankUnit& unit);
int64_t kept_elements(const LowRankUnit& unit);

/// `runs`: of layer_codecs, for the unit. `uniform`: rank instead of which others may be chosen
/// while training; 0: none is.
LowRankUnit low_rank_unit(const UnitShape& unit, const codec::Runs& runs, int64_t uniform);
/// "384x128/4|256", "384x128/4:8" with room for rank 8; print_low_rank's text is read back.
std::string print_low_rank(const LowRankUnit& unit);
LowRankUnit parse_low_rank(const std::string& text);

/// Adds the residual to the gradient where there is one, counts what is not finite and makes it 0,
/// and multiplies by the right factors of the step before; columns of zeros among these are drawn.
extern const program::Kernel kProjectRight;
enum ProjectRightOperand : int {
  kProjectedGradient,
  kProjectResidual,
  kProjectFactors,
  kProjectedLeft,
  kProjectAgreed
};

/// Makes the columns of the summed left factors orthonormal and multiplies by the gradient.
extern const program::Kernel kProjectLeft;
enum ProjectLeftOperand : int { kLeftGradient, kLeftFactors, kLeftRight };

/// The gradient becomes the product of the summed factors; the residual, if any, what its share of
/// it misses of this rank's; the right factors are kept for the next step, with zeros in what they
/// leave of their room.
extern const program::Kernel kExpandFactors;
enum ExpandFactorsOperand : int {
  kExpandLeft,
  kExpandRight,
  kExpandedGradient,
  kExpandResidual,
  kExpandKept
};
/// Of all three: print_low_rank's text.
enum LowRankAttribute : int { kLowRankUnit };

}  // namespace strait::strategy
