// What of the model a rank of the mesh axes x and y holds.
//
// Over x, of a transformer block, the products that begin a branch are split by rows (qkv by heads,
// up by channels, gate and up alike, with their biases), those that end it by columns (output,
// down). Norms and the biases of output and down are shared: each rank holds them, and adds them
// once, behind the sum over x (Megatron-LM, Shoeybi et al. 2019). Embedding and head are shared as
// well.
#pragma once

#include <cstdint>

#include "strait/shape/shape.h"

namespace strait {

/// UserError (key mesh.axes.x) unless x divides heads, kv_heads and ffn_width: it names the first
/// that it does not divide, and the nearest x that divides all three. A family that normalizes all
/// queries of a row together has x = 1.
void check_x(const ShapeOptions& options, const BlockStyle& style, int64_t x);

/// The model as each rank of x and y sees it: dims, offsets and sections of its part (boxes.h);
/// options and names of the whole. Without splits for an axis of size 1. `model` must be whole.
/// Errors as check_x and localize.
ModelShape local_shape(const ModelShape& model, int64_t x, int64_t y = 1);

}  // namespace strait
