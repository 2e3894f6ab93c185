#include "strait/shape/split.h"

#include <fmt/format.h>

#include <numeric>
#include <string>
#include <utility>

#include "strait/base/errors.h"
#include "strait/shape/boxes.h"
#include "strait/shape/unet.h"

namespace strait {
namespace {

/// The largest size of an axis that divides `common` and `size`, and so the ranks as `size` does.
int64_t nearest_axis(int64_t common, int64_t size) { return size < 1 ? 1 : std::gcd(common, size); }

[[noreturn]] void refuse(const char* key, const std::string& message) {
  ErrorPlace place;
  place.key = key;
  throw UserError(message, place);
}

void require_divides(const ShapeOptions& options, int64_t x, const char* key, int64_t size) {
  if (x >= 1 && size % x == 0) return;
  const int64_t common = std::gcd(std::gcd(options.heads, options.kv_heads), options.ffn_width);
  refuse("mesh.axes.x",
         fmt::format("mesh.axes.x = {} does not divide model.shape.{} = {}; nearest that "
                     "divides heads, kv_heads and ffn_width on the same ranks: {}",
                     x, key, size, nearest_axis(common, x)));
}

/// Rows may be added to those of the tokenizer.
void check_vocabulary(const ShapeOptions& options, int64_t vocabulary, int64_t x) {
  if (vocabulary % x == 0) return;
  const int64_t common =
      std::gcd(std::gcd(options.heads, options.kv_heads), std::gcd(options.ffn_width, vocabulary));
  refuse("mesh.axes.x",
         fmt::format("mesh.axes.x = {} does not divide the {} rows of the vocabulary; the nearest "
                     "valid value is {}, or model.shape.vocabulary = {}",
                     x, vocabulary, nearest_axis(common, x), (vocabulary + x - 1) / x * x));
}

}  // namespace

void check_grid(const ShapeOptions& options, const BlockStyle& style, int64_t vocabulary,
                const GridSizes& grid) {
  const auto [x, y] = grid;
  if (style.query_key_norm == QueryKeyNorm::kWidth && x != 1)
    refuse("mesh.axes.x",
           fmt::format("mesh.axes.x = {} cuts rows of queries and keys that model.family "
                       "normalizes as a whole; the nearest valid value is 1",
                       x));
  require_divides(options, x, "heads", options.heads);
  require_divides(options, x, "kv_heads", options.kv_heads);
  require_divides(options, x, "ffn_width", options.ffn_width);
  check_vocabulary(options, vocabulary, x);
  if (y < 1 || options.width % y != 0)
    refuse("mesh.axes.y",
           fmt::format("mesh.axes.y = {} does not divide model.shape.width = {}; the nearest valid "
                       "value is {}",
                       y, options.width, nearest_axis(options.width, y)));
}

ModelShape local_shape(const ModelShape& model, int64_t x, int64_t y, int64_t sequence) {
  ensure(model.x == 1 && model.y == 1, "local_shape: the model is a rank's part already");
  if (!model.modules) check_grid(model.options, model.style, model.vocabulary, {x, y});
  if (model.modules) {
    ensure(sequence == 1, "local_shape: sequences of chains are not cut");
    ensure(model.modules->unet != nullptr || x * y == 1, "local_shape: modules are not cut");
    if (model.modules->unet) check_unet_grid(model.modules->unet->options, x, y);
  }
  ModelShape local = model;
  local.x = x;
  local.splits_rows = model.splits_rows && x > 1;
  local.y = y;
  local.sequence = sequence;
  for (UnitShape& unit : local.units) unit = localize(unit, x, y).shape;
  for (BlockShape& block : local.blocks)
    for (const auto& [name, size] :
         {std::pair{"x", x}, std::pair{"y", y}, std::pair{"sequence", sequence}})
      if (size > 1) block.signature += fmt::format(" {}={}", name, size);
  if (local.splits_rows)
    for (BlockShape& block : local.blocks) block.signature += " rows";
  if (sequence > 1 && model.engine != SequenceEngine::kGathered)
    for (BlockShape& block : local.blocks)
      block.signature += model.engine == SequenceEngine::kRing ? " ring" : " heads";
  return local;
}

}  // namespace strait
