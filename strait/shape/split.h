// Which part of which parameter a rank of the mesh axis x holds, and the model that such a rank sees.
//
// Of a transformer block the products that begin a branch are cut by rows (qkv by heads, up by channels, gate
// and up alike, with their biases), those that end it by columns (output, down). Norms and the biases of output
// and down are shared: each rank holds them, and adds them once, behind the sum over x (Megatron-LM, Shoeybi
// et al. 2019). Embedding and head are shared as well.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/shape/shape.h"

namespace strait {

/// `rows` runs of `run` elements: in the whole parameter they begin at whole_begin and are whole_stride apart,
/// in the rank's part at local_begin and local_stride apart.
struct Box {
  int64_t rows = 0, run = 0;
  int64_t whole_begin = 0, whole_stride = 0;
  int64_t local_begin = 0, local_stride = 0;
};

/// The boxes of rank `index` of `x`: one per part of split_x, one for a shared parameter. Over all ranks they
/// tile a cut parameter; in each rank they tile its part. `parameter` is that of the whole model, whose parts x
/// divides.
std::vector<Box> boxes_x(const ParameterShape& parameter, int64_t x, int64_t index);

/// dims of a rank's part of a parameter of the whole model.
std::vector<int64_t> local_dims(const ParameterShape& parameter, int64_t x);

/// UserError (key mesh.axes.x) unless x divides heads, kv_heads and ffn_width: it names the first that it does
/// not divide, and the nearest x that divides all three.
void check_x(const ShapeOptions& options, int64_t x);

/// The model as each rank of x sees it: dims, offsets, sections and sizes of its part; options, names, blocks and
/// initial deviations of the whole. `model` must be whole (x = 1); with x = 1 it is returned as it is. Initial
/// values are those of the whole parameters' elements: boxes_x says which. Errors as check_x.
ModelShape local_shape(const ModelShape& model, int64_t x);

/// Assigns offsets to `parameters` and makes sections: decayed parameters first; with x > 1, cut ones before
/// shared ones; otherwise in the order given.
UnitShape make_unit(std::string name, const std::vector<ParameterShape>& parameters, int64_t x = 1);

}  // namespace strait
