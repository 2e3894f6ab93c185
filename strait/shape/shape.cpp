#include "strait/shape/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "strait/base/errors.h"
#include "strait/shape/block_layout.h"
#include "strait/shape/modules.h"

namespace strait {

int64_t ParameterShape::elements() const {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

const ParameterShape& UnitShape::parameter(const std::string& full_name) const {
  std::vector<std::string> names;
  for (const ParameterShape& candidate : parameters) {
    if (candidate.name == full_name) return candidate;
    names.push_back(candidate.name);
  }
  throw InternalError(fmt::format("unit {} has no parameter {}; nearest: {}", name, full_name,
                                  nearest_choice(full_name, names)));
}

int64_t ModelShape::parameters() const {
  int64_t count = 0;
  for (const UnitShape& unit : units) count += unit.elements;
  return count;
}

int64_t cache_bytes(const ModelShape& model, int64_t batch, int64_t context, Dtype dtype) {
  const ShapeOptions& options = model.options;
  return 2 * batch * context * options.kv_heads / model.x * options.head_elements() *
         dtype_bytes(dtype);
}

double attended_tokens(int64_t tokens, int64_t window) {
  if (window == 0 || window >= tokens) return static_cast<double>(tokens);
  const auto near = static_cast<double>(window);
  return near * (2.0 - near / static_cast<double>(tokens));
}

double attended_tokens(int64_t tokens, const ShapeOptions& options) {
  if (options.window_pattern == 0) return attended_tokens(tokens, options.window);
  const int64_t whole = options.layers / options.window_pattern;
  const double sum =
      static_cast<double>(whole) * attended_tokens(tokens, 0) +
      static_cast<double>(options.layers - whole) * attended_tokens(tokens, options.window);
  return sum / static_cast<double>(options.layers);
}

double attended_tokens(int64_t tokens, const ModelShape& model) {
  const int64_t longest = model.document_tokens > 0 ? model.document_tokens : model.options.context;
  return model.slowest_attention *
         attended_tokens(std::min(tokens * model.sequence, longest), model.options);
}

LayerForm layer_form(const ModelShape& model, int64_t block) {
  const ShapeOptions& options = model.options;
  if (!options.has_window(block - 1)) return {0, options.rope};
  if (!model.style.local_rope) return {options.window, options.rope};
  RopeOptions rope;
  rope.theta = options.rope.local_theta;
  return {options.window, rope};
}

double embedding_scale(const ModelShape& model) {
  return model.style.scaled_embedding ? std::sqrt(static_cast<double>(model.options.width)) : 1.0;
}

int64_t head_chunk_rows(int64_t vocabulary, int64_t rows) {
  // Every chunk reads the matrix twice, and reads and writes its gradient: in bf16 12 bytes of a
  // number for six operations with every row.
  constexpr int64_t kEnoughRows = 512;
  constexpr int64_t kLeastRows = 64;  // below, the GEMMs lose speed
  constexpr int64_t kSmall = int64_t{16} << 20, kMost = int64_t{64} << 20;  // elements
  const int64_t entries = std::max<int64_t>(vocabulary, 1);
  const int64_t limit =
      std::max({kSmall / entries, std::min(kMost / entries, kEnoughRows), kLeastRows});
  if (rows <= limit) return std::max<int64_t>(rows, 1);
  const int64_t chunks = (rows + limit - 1) / limit;
  return (rows + chunks - 1) / chunks;
}

namespace {

/// Ranks of x over which the rows between products are split.
int64_t rows_split(const ModelShape& model) { return model.splits_rows ? model.x : 1; }

BlockSizes embedding_sizes(const ModelShape& model, int64_t rows, int64_t element) {
  BlockSizes sizes;
  const int64_t gradient_bytes = rows * model.options.width / model.y * element;
  sizes.output_bytes = gradient_bytes / rows_split(model);
  sizes.bundle_bytes = gradient_bytes;
  // The masked gradient; without dropout the gradient is read where it is.
  sizes.backward_workspace_bytes = model.options.dropout > 0.0 ? gradient_bytes : 0;
  return sizes;
}

/// Parameters of a transformer block that multiply, on one rank of x and y: the matrices.
double multiplying_parameters(const BlockExtent& extent) {
  const auto width = static_cast<double>(extent.width);
  return width * static_cast<double>(extent.qkv_width() + extent.attention_width() +
                                     extent.up_width() + extent.ffn_width);
}

BlockSizes transformer_sizes(const ModelShape& model, int64_t batch, int64_t tokens, Dtype dtype) {
  const int64_t element = dtype_bytes(dtype);
  const BlockExtent extent = block_extent(model, batch, tokens, dtype);
  BlockSizes sizes;
  sizes.input_bytes = sizes.output_bytes = extent.own_rows() * extent.width * element;
  sizes.saved_bytes = saved_layout(extent).elements * element;
  sizes.forward_workspace_bytes = forward_layout(extent).elements * element;
  sizes.backward_workspace_bytes = backward_layout(extent).elements * element;
  sizes.bundle_bytes = bundle_layout(extent).elements * element;
  const auto rows = static_cast<double>(extent.rows);
  const double linear = 2.0 * rows * multiplying_parameters(extent);
  const double attention =
      2.0 * rows * static_cast<double>(extent.attention_width()) * attended_tokens(tokens, model);
  sizes.forward_flops = linear + attention;
  sizes.attention_flops = attention;
  sizes.backward_flops = 2.0 * sizes.forward_flops;
  return sizes;
}

BlockSizes head_sizes(const ModelShape& model, int64_t rows, Dtype dtype) {
  const int64_t element = dtype_bytes(dtype);
  const int64_t vocabulary = model.vocabulary / model.x, width = model.options.width / model.y;
  const int64_t chunk = head_chunk_rows(vocabulary, rows);
  const HeadLayout layout = head_layout(chunk, width, vocabulary, dtype);
  BlockSizes sizes;
  sizes.input_bytes = rows / rows_split(model) * width * element;
  sizes.forward_workspace_bytes = layout.forward_elements * element;
  sizes.backward_workspace_bytes = layout.backward_elements * element;
  sizes.forward_flops = 2.0 * static_cast<double>(rows) * static_cast<double>(vocabulary) *
                        static_cast<double>(width);
  sizes.backward_flops = 2.0 * sizes.forward_flops;
  return sizes;
}

}  // namespace

BlockSizes block_sizes(const ModelShape& model, int64_t block, int64_t batch, int64_t tokens,
                       Dtype dtype) {
  switch (model.blocks.at(static_cast<size_t>(block)).kind) {
    case BlockKind::kEmbedding:
      return embedding_sizes(model, batch * tokens, dtype_bytes(dtype));
    case BlockKind::kTransformer:
      return transformer_sizes(model, batch, tokens, dtype);
    case BlockKind::kHead:
      return head_sizes(model, batch * tokens, dtype);
    case BlockKind::kCustom:
      if (model.modules)
        return module_sizes(*model.modules, block, batch, dtype, {model.x, model.y});
      break;
  }
  throw InternalError("block_sizes: a custom block states its own sizes");
}

double model_flops_per_token(const ModelShape& model, int64_t tokens) {
  if (model.modules) return module_flops_per_token(*model.modules);
  const auto layers = static_cast<double>(model.options.layers);
  const auto width = static_cast<double>(model.options.width);
  const auto attention_width =
      static_cast<double>(model.options.heads * model.options.head_elements());
  const double block = static_cast<double>(model.x * model.y) *
                       multiplying_parameters(block_extent(model, 1, 1, Dtype::kFloat32));
  const double multiplying = layers * block + static_cast<double>(model.vocabulary) * width;
  return 6.0 * multiplying +
         6.0 * layers * attended_tokens(tokens, model.options) * attention_width;
}

}  // namespace strait
