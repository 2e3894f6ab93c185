// Which part of which parameter a rank of the mesh axis x holds, and the model that such a rank
// sees.
//
// Of a transformer block the products that begin a branch are split by rows (qkv by heads, up by
// channels, gate and up alike, with their biases), those that end it by columns (output, down).
// Norms and the biases of output and down are shared: each rank holds them, and adds them once,
// behind the sum over x (Megatron-LM, Shoeybi et al. 2019). Embedding and head are shared as
// well.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/shape/shape.h"

namespace strait {

/// UserError (key mesh.axes.x) unless x divides heads, kv_heads and ffn_width: it names the first
/// that it does not divide, and the nearest x that divides all three.
void check_x(const ShapeOptions& options, int64_t x);

/// The model as each rank of x sees it: dims, offsets and sections of its part; options and names
/// of the whole. `model` must be whole (x = 1); with x = 1 it is returned as it is. Errors as
/// check_x.
ModelShape local_shape(const ModelShape& model, int64_t x);

/// Assigns offsets to `parameters` and makes sections: decayed parameters first; with x > 1, split
/// ones before shared ones; otherwise in the order given.
UnitShape make_unit(std::string name, const std::vector<ParameterShape>& parameters, int64_t x = 1);

}  // namespace strait
