#include "strait/shape/split.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "strait/base/errors.h"
#include "strait/shape/boxes.h"
#include "strait/shape/unet.h"
#include "strait/topology/nearest.h"

namespace strait {
namespace {

/// Of the sizes of an axis that divide `largest` and what the other axis leaves of the ranks, the
/// one nearest to `size`.
int64_t nearest_axis(int64_t largest, int64_t size, int64_t other, const GridSizes& grid) {
  const int64_t ranks = grid.ranks > 0 ? grid.ranks : grid.x * grid.y;
  return nearest_divisor(std::gcd(largest, ranks / std::max<int64_t>(other, 1)), size);
}
int64_t nearest_x(const GridSizes& largest, const GridSizes& grid) {
  return nearest_axis(largest.x, grid.x, grid.y, grid);
}
int64_t nearest_y(const GridSizes& largest, const GridSizes& grid) {
  return nearest_axis(largest.y, grid.y, grid.x, grid);
}

[[noreturn]] void refuse(const char* key, const std::string& message) {
  ErrorPlace place;
  place.key = key;
  throw UserError(message, place);
}

struct NamedSize {
  const char* name;
  int64_t size;
};

void check_x(const ShapeOptions& options, int64_t vocabulary, const GridSizes& grid) {
  const int64_t x = grid.x, nearest = nearest_x(largest_grid(options, vocabulary), grid);
  for (const auto& [name, size] :
       {NamedSize{"heads", options.heads}, NamedSize{"kv_heads", options.kv_heads},
        NamedSize{"ffn_width", options.ffn_width}})
    if (x < 1 || size % x != 0)
      refuse("mesh.axes.x",
             fmt::format("mesh.axes.x = {} does not divide model.shape.{} = {}; "
                         "nearest that divides {}heads, kv_heads and ffn_width on "
                         "the same ranks: {}",
                         x, name, size, vocabulary > 0 ? "vocabulary, " : "", nearest));
  // Rows may be added to those of the tokenizer.
  if (vocabulary % x != 0)
    refuse("mesh.axes.x",
           fmt::format("mesh.axes.x = {} does not divide the {} rows of the vocabulary; the "
                       "nearest valid value is {}, or model.shape.vocabulary = {}",
                       x, vocabulary, nearest, (vocabulary + x - 1) / x * x));
}

}  // namespace

GridSizes largest_grid(const ShapeOptions& options, int64_t vocabulary) {
  const int64_t heads = std::gcd(options.heads, options.kv_heads);
  return {std::gcd(heads, std::gcd(options.ffn_width, vocabulary)), options.width};
}

GridSizes largest_grid(const UnetOptions& options) {
  GridSizes largest{0, 0};
  for (const int64_t channels : options.channels) {
    largest.x = std::gcd(largest.x, unet_groups(channels));
    largest.y = std::gcd(largest.y, channels);
  }
  return largest;
}

void check_grid(const ShapeOptions& options, const BlockStyle& style, int64_t vocabulary,
                const GridSizes& grid) {
  const int64_t x = grid.x, y = grid.y;
  if (style.query_key_norm == QueryKeyNorm::kWidth && x != 1)
    refuse("mesh.axes.x",
           fmt::format("mesh.axes.x = {} cuts rows of queries and keys that model.family "
                       "normalizes as a whole; the nearest valid value is 1",
                       x));
  check_x(options, vocabulary, grid);
  if (y < 1 || options.width % y != 0)
    refuse("mesh.axes.y",
           fmt::format("mesh.axes.y = {} does not divide model.shape.width = {}; the nearest valid "
                       "value is {}",
                       y, options.width, nearest_y(largest_grid(options, vocabulary), grid)));
}

void check_unet_grid(const UnetOptions& options, const GridSizes& grid) {
  const GridSizes largest = largest_grid(options);
  const auto check = [&](const char* key, int64_t size, int64_t most, const char* what,
                         int64_t nearest) {
    if (size >= 1 && most % size == 0) return;
    refuse(key, fmt::format("{} = {} does not divide {} model.unet.channels = [{}]; the nearest "
                            "valid value is {}",
                            key, size, what, fmt::join(options.channels, ", "), nearest));
  };
  check("mesh.axes.x", grid.x, largest.x, "the groups of every norm between",
        nearest_x(largest, grid));
  check("mesh.axes.y", grid.y, largest.y, "all of", nearest_y(largest, grid));
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
