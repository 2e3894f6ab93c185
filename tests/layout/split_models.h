// Models whose parameters are split over x and y as tensor parallelism splits them.
#pragma once

#include <string>

#include "strait/shape/shape.h"

namespace strait {

/// Odd sizes where they may be: 4 heads of 6, two of keys and values in Llama, 20 as feed-forward
/// width.
inline ShapeOptions split_options(const std::string& family) {
  ShapeOptions options;
  options.layers = 2;
  options.heads = 4;
  options.kv_heads = family == "llama" ? 2 : 4;
  options.width = 24;
  options.ffn_width = 20;
  options.context = 5;
  options.bias = true;
  options.tied_head = family != "llama";
  return options;
}

/// Rows of qkv and up over x with their biases, columns of output and down; the other dim over y.
inline void split_parameters(ModelShape& model) {
  const ShapeOptions& options = model.options;
  const int64_t kv = options.width / options.heads * options.kv_heads;
  for (UnitShape& unit : model.units)
    for (ParameterShape& parameter : unit.parameters) {
      const bool matrix = parameter.dims.size() == 2;
      const auto is = [&](const char* part) {
        return parameter.name.find(part) != std::string::npos;
      };
      if (is("qkv")) parameter.split.x = {0, {options.width, kv, kv}};
      if (is("mlp.gate_up")) parameter.split.x = {0, {options.ffn_width, options.ffn_width}};
      if (is("mlp.up")) parameter.split.x = {0, {}};
      if (matrix && (is("attention.output") || is("mlp.down"))) {
        parameter.split.x = {1, {}};
        parameter.split.y = {0, {}};
      } else if (matrix && parameter.split.x.dim == 0) {
        parameter.split.y = {1, {}};
      }
    }
}

/// A model of split_options, split so.
inline ModelShape split_model(const std::string& family) {
  ModelShape model = family == "llama" ? llama_shape(split_options(family), 12)
                                       : gpt2_shape(split_options(family), 12);
  split_parameters(model);
  return model;
}

}  // namespace strait
