#include "strait/shape/unit.h"

namespace strait {

UnitShape make_unit(std::string name, const std::vector<ParameterShape>& parameters) {
  UnitShape unit;
  unit.name = std::move(name);
  for (const bool decay : {true, false}) {
    const int64_t begin = unit.elements;
    for (const ParameterShape& given : parameters) {
      if (given.weight_decay != decay) continue;
      ParameterShape& placed = unit.parameters.emplace_back(given);
      placed.offset = unit.elements;
      unit.elements += placed.elements();
    }
    if (unit.elements > begin) unit.sections.push_back({begin, unit.elements, decay});
  }
  return unit;
}

}  // namespace strait
