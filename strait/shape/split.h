// What of the model a rank of the mesh axes x and y holds.
//
// Over x, of a transformer block, the products that begin a branch are split by rows (qkv by heads,
// up by channels, gate and up alike, with their biases), those that end it by columns (output,
// down); of the matrices of embedding and head, the rows of the vocabulary. Over y every matrix is
// split along its other dim, the width of the residual stream; norms, positions and the biases of
// output and down with it. So what no axis splits (norms and those biases over x, the biases of qkv
// and up over y) is shared: each rank holds it, and adds it once, behind the sum of the product.
#pragma once

#include <cstdint>

#include "strait/shape/shape.h"

namespace strait {

struct GridSizes {
  int64_t x = 1, y = 1;
  int64_t ranks = 0;  // that x, y and data share; 0: only those of x and y are known
};

/// The largest axes that a model takes, of which every size that it takes is a divisor: of a
/// transformer, whose `vocabulary` 0 is not known yet, and of a U-Net.
GridSizes largest_grid(const ShapeOptions& options, int64_t vocabulary);
GridSizes largest_grid(const UnetOptions& options);

/// UserError (key mesh.axes.x or y) unless x divides heads, kv_heads, ffn_width and the rows of the
/// vocabulary, and y the width: it names the first size that is not divided, and the nearest axis
/// that divides all of its sizes and the ranks that the other axis leaves. A family that normalizes
/// all queries of a row together has x = 1. `vocabulary` 0: not known yet.
void check_grid(const ShapeOptions& options, const BlockStyle& style, int64_t vocabulary,
                const GridSizes& grid);
/// The same for a U-Net: groups of all norms that x cuts are whole, and y divides all channels.
void check_unet_grid(const UnetOptions& options, const GridSizes& grid);

/// The model as each rank of x, y and sequence sees it: dims, offsets and sections of its part
/// (boxes.h);
/// options and names of the whole. Without splits for an axis of size 1. `model` must be whole.
/// Errors as check_grid and localize.
ModelShape local_shape(const ModelShape& model, int64_t x, int64_t y = 1, int64_t sequence = 1);

}  // namespace strait
