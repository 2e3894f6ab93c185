#include "strait/shape/split.h"

#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <numeric>

#include "strait/base/errors.h"

namespace strait {
namespace {

int64_t product(const std::vector<int64_t>& dims, size_t begin, size_t end) {
  const auto at = dims.begin();
  return std::accumulate(at + static_cast<int64_t>(begin), at + static_cast<int64_t>(end),
                         int64_t{1}, std::multiplies<>());
}

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
  local.dims = local_dims(whole, x);
  for (int64_t& part : local.split_x.parts) part /= x;
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
    for (const bool shared : {false, true}) {
      const int64_t begin = unit.elements;
      for (const ParameterShape& given : parameters) {
        if (given.weight_decay != decay || (x > 1 && given.split_x.none()) != shared) continue;
        ParameterShape& placed = unit.parameters.emplace_back(given);
        placed.offset = unit.elements;
        unit.elements += placed.elements();
      }
      if (unit.elements > begin) unit.sections.push_back({begin, unit.elements, decay, shared});
    }
  }
  return unit;
}

std::vector<int64_t> local_dims(const ParameterShape& parameter, int64_t x) {
  std::vector<int64_t> dims = parameter.dims;
  if (!parameter.split_x.none()) dims[static_cast<size_t>(parameter.split_x.dim)] /= x;
  return dims;
}

std::vector<Box> boxes_x(const ParameterShape& parameter, int64_t x, int64_t index) {
  if (parameter.split_x.none()) return {{1, parameter.elements(), 0, 0, 0, 0}};
  const auto dim = static_cast<size_t>(parameter.split_x.dim);
  const int64_t outer = product(parameter.dims, 0, dim);
  const int64_t inner = product(parameter.dims, dim + 1, parameter.dims.size());
  const int64_t stride = parameter.dims[dim] * inner;
  std::vector<Box> boxes;
  int64_t begin = 0;  // of the part, in elements of one outer row
  for (const int64_t part : parameter.split_x.parts) {
    ensure(part % x == 0, "boxes_x: x does not divide a part; check_x comes first");
    const int64_t run = part / x * inner;
    boxes.push_back({outer, run, begin + index * run, stride, begin / x, stride / x});
    begin += part * inner;
  }
  return boxes;
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
