#include "strait/strategy/compose/collect.h"

#include <map>

#include "strait/program/roll.h"
#include "strait/strategy/sharding/movement.h"
#include "strait/strategy/sharding/unit_values.h"

namespace strait::strategy {

const program::Kernel kVisit = {"visit",
                                program::Bound::kNothing,
                                {{"weights", program::kReads}},
                                {{"number", program::AttributeType::kIndex, true}},
                                nullptr,
                                true};

std::vector<UnitVisit> visits_by_name(const ModelShape& shape) {
  std::map<std::string, int64_t> units;
  for (size_t unit = 0; unit < shape.units.size(); ++unit)
    for (const ParameterShape& parameter : shape.units[unit].parameters)
      units[parameter.name] = static_cast<int64_t>(unit);
  std::vector<UnitVisit> visits;
  for (const auto& [name, unit] : units) {
    if (visits.empty() || visits.back().unit != unit) visits.push_back({unit, {}});
    visits.back().parameters.push_back(name);
  }
  return visits;
}

program::Program compose_collect(const ModelShape& shape, const Placement& placement,
                                 const Cluster& cluster, Dtype dtype,
                                 const std::vector<UnitVisit>& visits) {
  program::Program program;
  program.name = placement.preset;
  program.step_kind = "collect";
  program.ranks = placement.ranks;
  program.streams = {{"compute", 0}};
  UnitValues values(program, shape, placement, cluster, types_of(dtype));
  values.declare_gathered_master();
  const Movement movement(program, values, placement, cluster, {});
  std::vector<program::Node> nodes;
  for (size_t v = 0; v < visits.size(); ++v) {
    movement.gather_master(visits[v].unit, nodes);
    program::Op op;
    op.kind = program::OpKind::kKernel;
    op.kernel = &kVisit;
    op.attributes = {program::Index{static_cast<int64_t>(v)}};
    op.reads = {program::as(movement.master(visits[v].unit), program::Access::kRead, kVisited)};
    nodes.push_back(std::move(op));
    movement.release_master(visits[v].unit, nodes);
  }
  program.body = program::roll(std::move(nodes), program.num_loops, "v");
  return program;
}

}  // namespace strait::strategy
