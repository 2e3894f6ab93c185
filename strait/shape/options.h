// [model] of the run file: which model, without tensors.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace strait {

/// Rotary position embedding (Su et al. 2021): pair i of a head turns by position * theta^(-2i /
/// head width). With factor > 1 as Llama 3.1 stretches it: wave lengths above original_context /
/// low_frequency_factor grow by `factor`, those below original_context / high_frequency_factor
/// stay, between them it is blended; original_context = 1 stretches all (linear scaling).
struct RopeOptions {
  double theta = 10000.0;
  double factor = 1.0;  // 1 = as trained
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  int64_t original_context = 8192;  // tokens
  double local_theta = 10000.0;     // theta, without stretching, of blocks with a window where
                                    // those differ from the others (window_pattern)
};

/// Sizes of a decoder-only transformer. `kv_heads` and `ffn_width` are set explicitly by presets.
struct ShapeOptions {
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t kv_heads = 12;  // == heads for gpt2; otherwise divides heads
  int64_t width = 768;    // of the residual stream; multiple of heads where head_width is 0
  int64_t ffn_width = 3072;
  int64_t context = 1024;  // longest sequence, tokens
  bool bias = true;        // biases of linear layers and LayerNorm (RMSNorm has none)
  double dropout = 0.0;    // in [0, 1)
  bool tied_head = true;   // head shares the token embedding
  double norm_eps = 1e-5;  // added to the variance or the mean square
  RopeOptions rope = {};   // all families but gpt2
  int64_t head_width = 0;  // elements of one head; 0: width / heads
  int64_t window = 0;      // latest tokens that a query attends, itself included; 0: all before it
  int64_t vocabulary = 0;  // rows of embedding and head; 0: one per token of the tokenizer
  int64_t window_pattern = 0;  // every so many-th block has no window; 0: all have
  double query_scalar = 0.0;   // scores are divided by its root; 0: by that of the head's elements
  double score_cap = 0.0;      // scores become score_cap tanh(score / score_cap); 0: they stay
  double logit_cap = 0.0;      // so do logits by theirs
  int64_t head_elements() const { return head_width > 0 ? head_width : width / heads; }
  /// Of block `layer` of the transformer, counted from 0.
  bool has_window(int64_t layer) const {
    return window > 0 && (window_pattern == 0 || (layer + 1) % window_pattern != 0);
  }
  /// As kernel::AttentionCall takes it: 0 stands for the width of heads.
  double score_scale() const { return query_scalar > 0.0 ? 1.0 / std::sqrt(query_scalar) : 0.0; }
};

/// Sizes of a U-Net that predicts the noise in images (Ho et al. 2020): shape/unet.h.
struct UnetOptions {
  std::vector<int64_t> channels = {32, 64, 128};  // of each level; every level halves the image
  int64_t image = 32;           // height and width in pixels; divisible by 2^(levels - 1)
  int64_t attention_from = 16;  // largest height at which residual blocks have attention; 0: none
  int64_t residual_blocks = 1;  // of each level on the way down; one more on the way up
  int64_t colors = 3;           // channels of an image
  int64_t diffusion_steps = 1000;
};

struct ModuleChain;  // shape/modules.h

struct ModelOptions {
  std::string preset = "gpt2-124m";
  std::string family = "gpt2";
  ShapeOptions shape;
  std::string path = {};                                 // family modules: the folder
  UnetOptions unet = {};                                 // family unet
  std::shared_ptr<const ModuleChain> modules = nullptr;  // the chain of either
};

}  // namespace strait
