// A program that shows every unit whole, once per visit: for hashes and exports.
#pragma once

#include <string>
#include <vector>

#include "strait/program/program.h"
#include "strait/shape/shape.h"
#include "strait/strategy/sharding/placement.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Parameters of one unit that follow each other in the order of names.
struct UnitVisit {
  int64_t unit = 0;
  std::vector<std::string> parameters;
};

/// All parameters in the order of their names (bytewise), joined while they stay in one unit.
std::vector<UnitVisit> visits_by_name(const ModelShape& shape);

/// Shows a whole unit: operand kVisited, attribute kVisitNumber.
extern const program::Kernel kVisit;
enum VisitOperand : int { kVisited };
enum VisitAttribute : int { kVisitNumber };

/// For each visit v: gather the unit, kVisit number v reading it, free. Step kind "collect".
program::Program compose_collect(const ModelShape& shape, const Placement& placement,
                                 const Cluster& cluster, Dtype dtype,
                                 const std::vector<UnitVisit>& visits);

}  // namespace strait::strategy
