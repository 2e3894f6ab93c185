// [model] of the run file: which model, without tensors.
#pragma once

#include <cstdint>
#include <string>

namespace strait {

/// Sizes of a decoder-only transformer. `kv_heads` and `ffn_width` are set explicitly by presets.
struct ShapeOptions {
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t kv_heads = 12;  // == heads for gpt2
  int64_t width = 768;    // multiple of heads
  int64_t ffn_width = 3072;
  int64_t context = 1024;  // longest sequence, tokens
  bool bias = true;        // biases of linear layers and LayerNorm
  double dropout = 0.0;    // in [0, 1)
  bool tied_head = true;   // head shares the token embedding
};

struct ModelOptions {
  std::string preset = "gpt2-124m";
  std::string family = "gpt2";
  ShapeOptions shape;
};

}  // namespace strait
