#include "strait/shape/split.h"

#include <fmt/format.h>

#include <cstdlib>
#include <numeric>

#include "strait/base/errors.h"

namespace strait {
namespace {

/// Among the divisors of all three sizes the one nearest to x, the lesser of two.
int64_t nearest_x(const ShapeOptions& options, int64_t x) {
  const int64_t common = std::gcd(std::gcd(options.heads, options.kv_heads), options.ffn_width);
  int64_t best = 1;
  for (int64_t candidate = 2; candidate <= common; ++candidate)
    if (common % candidate == 0 && std::abs(candidate - x) < std::abs(best - x)) best = candidate;
  return best;
}

void require_divides(const ShapeOptions& options, int64_t x, const char* key, int64_t size) {
  if (x >= 1 && size % x == 0) return;
  ErrorPlace place;
  place.key = "mesh.axes.x";
  throw UserError(fmt::format("mesh.axes.x: {} does not divide model.shape.{} = {}; nearest that "
                              "divides heads, kv_heads and ffn_width: {}",
                              x, key, size, nearest_x(options, x)),
                  place);
}

ParameterShape local_parameter(const ParameterShape& whole, int64_t x) {
  ParameterShape local = whole;
  AxisSplit& split = local.split.x;
  if (split.dim >= 0) local.dims[static_cast<size_t>(split.dim)] /= x;
  for (int64_t& part : split.parts) part /= x;
  return local;
}

UnitShape local_unit(const UnitShape& whole, int64_t x) {
  std::vector<ParameterShape> parameters;
  for (const ParameterShape& parameter : whole.parameters)
    parameters.push_back(local_parameter(parameter, x));
  return make_unit(whole.name, parameters, x);
}

}  // namespace

UnitShape make_unit(std::string name, const std::vector<ParameterShape>& parameters, int64_t x) {
  UnitShape unit;
  unit.name = std::move(name);
  for (const bool decay : {true, false}) {
    for (const bool split : {true, false}) {
      const int64_t begin = unit.elements;
      for (const ParameterShape& given : parameters) {
        const bool splits = x > 1 && given.split.x.dim >= 0;
        if (given.weight_decay != decay || splits != split) continue;
        ParameterShape& placed = unit.parameters.emplace_back(given);
        placed.offset = unit.elements;
        unit.elements += placed.elements();
      }
      if (unit.elements > begin) unit.sections.push_back({begin, unit.elements, decay, split});
    }
  }
  return unit;
}

void check_x(const ShapeOptions& options, int64_t x) {
  require_divides(options, x, "heads", options.heads);
  require_divides(options, x, "kv_heads", options.kv_heads);
  require_divides(options, x, "ffn_width", options.ffn_width);
}

ModelShape local_shape(const ModelShape& model, int64_t x) {
  ensure(model.x == 1, "local_shape: the model is a rank's part already");
  check_x(model.options, x);
  if (x == 1) return model;
  ModelShape local = model;
  local.x = x;
  for (UnitShape& unit : local.units) unit = local_unit(unit, x);
  for (BlockShape& block : local.blocks)
    if (block.kind == BlockKind::kTransformer) block.signature += fmt::format(" x={}", x);
  return local;
}

}  // namespace strait
