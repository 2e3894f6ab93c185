#include "strait/shape/split.h"

#include <fmt/format.h>

#include <cstdlib>
#include <numeric>

#include "strait/base/errors.h"
#include "strait/shape/boxes.h"

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
  throw UserError(fmt::format("mesh.axes.x = {} does not divide model.shape.{} = {}; nearest that "
                              "divides heads, kv_heads and ffn_width: {}",
                              x, key, size, nearest_x(options, x)),
                  place);
}

}  // namespace

void check_x(const ShapeOptions& options, const BlockStyle& style, int64_t x) {
  if (style.query_key_norm == QueryKeyNorm::kWidth && x != 1) {
    ErrorPlace place;
    place.key = "mesh.axes.x";
    throw UserError(fmt::format("mesh.axes.x = {} cuts rows of queries and keys that model.family "
                                "normalizes as a whole; the nearest valid value is 1",
                                x),
                    place);
  }
  require_divides(options, x, "heads", options.heads);
  require_divides(options, x, "kv_heads", options.kv_heads);
  require_divides(options, x, "ffn_width", options.ffn_width);
}

ModelShape local_shape(const ModelShape& model, int64_t x, int64_t y) {
  ensure(model.x == 1, "local_shape: the model is a rank's part already");
  if (!model.modules) check_x(model.options, model.style, x);
  ensure(!model.modules || (x == 1 && y == 1), "local_shape: modules are not cut");
  ModelShape local = model;
  local.x = x;
  for (UnitShape& unit : local.units) unit = localize(unit, x, y).shape;
  for (BlockShape& block : local.blocks)
    if (x > 1 && block.kind == BlockKind::kTransformer) block.signature += fmt::format(" x={}", x);
  return local;
}

}  // namespace strait
