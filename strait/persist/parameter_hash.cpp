#include "strait/persist/parameter_hash.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "strait/checkpoint/files/hash.h"

namespace strait::persist {
namespace {

struct Named {
  int64_t unit = 0;
  const ParameterShape* parameter = nullptr;
};

/// Bytewise by name, as checkpoint::parameter_hash has them.
std::vector<Named> by_name(const ModelShape& shape) {
  std::vector<Named> all;
  for (size_t unit = 0; unit < shape.units.size(); ++unit)
    for (const ParameterShape& parameter : shape.units[unit].parameters)
      all.push_back({static_cast<int64_t>(unit), &parameter});
  std::sort(all.begin(), all.end(),
            [](const Named& a, const Named& b) { return a.parameter->name < b.parameter->name; });
  return all;
}

}  // namespace

std::string parameter_hash(const UnitState& units, const ModelShape& shape,
                           const runtime::Site& site) {
  checkpoint::Hasher128 hasher;
  const auto size = static_cast<size_t>(dtype_bytes(units.weights_dtype()));
  int64_t collected = -1;
  std::vector<std::byte> unit;
  for (const Named& named : by_name(shape)) {
    if (named.unit != collected) unit = units.collect_weights(named.unit, site);
    collected = named.unit;
    if (site.world.rank() != 0) continue;
    const auto offset = static_cast<size_t>(named.parameter->offset) * size;
    const auto bytes = static_cast<size_t>(named.parameter->elements()) * size;
    hasher.update(std::span(unit).subspan(offset, bytes));
  }
  return site.world.rank() == 0 ? hasher.hex() : "";
}

}  // namespace strait::persist
