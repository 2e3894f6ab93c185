// Named model sizes. Sources: nanoGPT's CPU setting of its character model; Radford et al. 2019
// (GPT-2); Brown et al. 2020, table 2.1 (GPT-3); the launch scripts of AxoNN's runs on Perlmutter,
// Frontier and Alps, Singh et al. 2024, with sequences of 2048 (axonn); Touvron et al. 2023 and
// Grattafiori et al. 2024 (Llama 2 and 3) as their config.json state them; so are SmolLM, Mistral,
// Qwen, OLMo 2 and the text part of Gemma 3. llama-10m and llama-124m have the sizes of nanoGPT's
// GPU character model and of GPT-2 124M.
#include <fmt/format.h>

#include <array>

#include "strait/base/errors.h"
#include "strait/shape/shape.h"
#include "strait/shape/unet.h"

namespace strait {
namespace {

struct Preset {
  const char* name;
  int64_t layers, heads, width, context;
  bool bias;
};

// GPT-3 XL: the paper prints 24 heads of 128 for width 2048; 16 heads is what fits. 13B: printed
// 5140.
constexpr std::array kPresets = {
    Preset{"nano-char", 4, 4, 128, 64, false},
    Preset{"gpt2-124m", 12, 12, 768, 1024, true},
    Preset{"gpt2-350m", 24, 16, 1024, 1024, true},
    Preset{"gpt2-774m", 36, 20, 1280, 1024, true},
    Preset{"gpt2-1558m", 48, 25, 1600, 1024, true},
    Preset{"gpt3-125m", 12, 12, 768, 2048, true},
    Preset{"gpt3-350m", 24, 16, 1024, 2048, true},
    Preset{"gpt3-760m", 24, 16, 1536, 2048, true},
    Preset{"gpt3-1.3b", 24, 16, 2048, 2048, true},
    Preset{"gpt3-2.7b", 32, 32, 2560, 2048, true},
    Preset{"gpt3-6.7b", 32, 32, 4096, 2048, true},
    Preset{"gpt3-13b", 40, 40, 5120, 2048, true},
    Preset{"gpt3-175b", 96, 96, 12288, 2048, true},
    Preset{"axonn-5b", 24, 32, 4096, 2048, true},
    Preset{"axonn-10b", 32, 40, 5120, 2048, true},
    Preset{"axonn-20b", 32, 56, 7168, 2048, true},
    Preset{"axonn-40b", 38, 72, 9216, 2048, true},
    Preset{"axonn-50b", 48, 72, 9216, 2048, true},
    Preset{"axonn-60b", 56, 72, 9216, 2048, true},
    Preset{"axonn-80b", 42, 96, 12288, 2048, true},
    Preset{"axonn-100b", 53, 96, 12288, 2048, true},
    Preset{"axonn-160b", 84, 96, 12288, 2048, true},
    Preset{"axonn-175b", 96, 96, 12288, 2048, true},
    Preset{"axonn-320b", 96, 128, 16384, 2048, true},
    Preset{"axonn-640b", 192, 128, 16384, 2048, true},
};

/// Llama: key/value heads, feed-forward width, and the stretching of RoPE (1 = none).
struct LlamaPreset {
  const char* name;
  int64_t layers, heads, kv_heads, width, ffn_width, context;
  double theta, factor;
  bool tied_head;
};

constexpr std::array kLlamaPresets = {
    LlamaPreset{"llama-10m", 6, 6, 2, 384, 1024, 256, 1e4, 1, true},
    LlamaPreset{"llama-124m", 12, 12, 12, 768, 2048, 1024, 1e4, 1, true},
    LlamaPreset{"llama-2-7b", 32, 32, 32, 4096, 11008, 4096, 1e4, 1, false},
    LlamaPreset{"llama-2-13b", 40, 40, 40, 5120, 13824, 4096, 1e4, 1, false},
    LlamaPreset{"llama-2-70b", 80, 64, 8, 8192, 28672, 4096, 1e4, 1, false},
    LlamaPreset{"llama-3-8b", 32, 32, 8, 4096, 14336, 8192, 5e5, 1, false},
    LlamaPreset{"llama-3-70b", 80, 64, 8, 8192, 28672, 8192, 5e5, 1, false},
    LlamaPreset{"llama-3.1-8b", 32, 32, 8, 4096, 14336, 131072, 5e5, 8, false},
    LlamaPreset{"llama-3.1-70b", 80, 64, 8, 8192, 28672, 131072, 5e5, 8, false},
    LlamaPreset{"llama-3.1-405b", 126, 128, 8, 16384, 53248, 131072, 5e5, 8, false},
    LlamaPreset{"llama-3.2-1b", 16, 32, 8, 2048, 8192, 131072, 5e5, 32, true},
    LlamaPreset{"llama-3.2-3b", 28, 24, 8, 3072, 8192, 131072, 5e5, 32, true},
};

/// The other families: vocabularies come with the tokenizer; 0 in head_width: width / heads.
struct FamilyPreset {
  const char *name, *family;
  int64_t layers, heads, kv_heads, width, ffn_width, context;
  double theta, norm_eps;
  bool tied_head;
  int64_t head_width, window;
};

constexpr std::array kFamilyPresets = {
    FamilyPreset{"smollm2-135m", "llama", 30, 9, 3, 576, 1536, 8192, 1e5, 1e-5, true, 0, 0},
    FamilyPreset{"smollm2-360m", "llama", 32, 15, 5, 960, 2560, 8192, 1e5, 1e-5, true, 0, 0},
    FamilyPreset{"smollm2-1.7b", "llama", 24, 32, 32, 2048, 8192, 8192, 1.3e5, 1e-5, true, 0, 0},
    FamilyPreset{"mistral-7b", "mistral", 32, 32, 8, 4096, 14336, 32768, 1e4, 1e-5, false, 0, 4096},
    FamilyPreset{"qwen2.5-0.5b", "qwen2", 24, 14, 2, 896, 4864, 32768, 1e6, 1e-6, true, 0, 0},
    FamilyPreset{"qwen2.5-1.5b", "qwen2", 28, 12, 2, 1536, 8960, 131072, 1e6, 1e-6, true, 0, 0},
    FamilyPreset{"qwen2.5-7b", "qwen2", 28, 28, 4, 3584, 18944, 131072, 1e6, 1e-6, false, 0, 0},
    FamilyPreset{"qwen3-0.6b", "qwen3", 28, 16, 8, 1024, 3072, 40960, 1e6, 1e-6, true, 128, 0},
    FamilyPreset{"qwen3-1.7b", "qwen3", 28, 16, 8, 2048, 6144, 40960, 1e6, 1e-6, true, 128, 0},
    FamilyPreset{"qwen3-8b", "qwen3", 36, 32, 8, 4096, 12288, 40960, 1e6, 1e-6, false, 128, 0},
    FamilyPreset{"olmo2-1b", "olmo2", 16, 16, 16, 2048, 8192, 4096, 5e5, 1e-6, false, 0, 0},
    FamilyPreset{"olmo2-7b", "olmo2", 32, 32, 32, 4096, 11008, 4096, 5e5, 1e-6, false, 0, 0},
};

/// Blocks with a window, then one without: Gemma 2 in turns, Gemma 3 five of six. `factor`
/// stretches RoPE of the latter.
struct GemmaPreset {
  const char *name, *family;
  int64_t layers, heads, kv_heads, width, ffn_width, context, head_width, window, pattern;
  double query_scalar, factor;
};
constexpr double kGemma2Theta = 1e4, kGemma3Theta = 1e6;

constexpr std::array kGemmaPresets = {
    GemmaPreset{"gemma-2-2b", "gemma2", 26, 8, 4, 2304, 9216, 8192, 256, 4096, 2, 256, 1},
    GemmaPreset{"gemma-2-9b", "gemma2", 42, 16, 8, 3584, 14336, 8192, 256, 4096, 2, 256, 1},
    GemmaPreset{"gemma-2-27b", "gemma2", 46, 32, 16, 4608, 36864, 8192, 128, 4096, 2, 144, 1},
    GemmaPreset{"gemma-3-270m", "gemma3", 18, 4, 1, 640, 2048, 32768, 256, 512, 6, 256, 1},
    GemmaPreset{"gemma-3-1b", "gemma3", 26, 4, 1, 1152, 6912, 32768, 256, 512, 6, 256, 1},
    GemmaPreset{"gemma-3-4b", "gemma3", 34, 8, 4, 2560, 10240, 131072, 256, 1024, 6, 256, 8},
    GemmaPreset{"gemma-3-12b", "gemma3", 48, 16, 8, 3840, 15360, 131072, 256, 1024, 6, 256, 8},
    GemmaPreset{"gemma-3-27b", "gemma3", 62, 32, 16, 5376, 21504, 131072, 128, 1024, 6, 168, 8},
};

/// unet-cifar10 has the sizes of Ho et al. 2020 (DDPM) for CIFAR-10, and attention at heights 8 and
/// 4 as well as 16: 38.4 million parameters for 35.7.
struct UnetPreset {
  const char* name;
  std::array<int64_t, 4> channels;  // 0: no such level
  int64_t image, attention_from, residual_blocks, colors;
};

constexpr std::array kUnetPresets = {
    UnetPreset{"unet-nano", {16, 32, 0, 0}, 16, 8, 1, 1},
    UnetPreset{"unet-small", {32, 64, 128, 0}, 32, 16, 1, 3},
    UnetPreset{"unet-cifar10", {128, 256, 256, 256}, 32, 16, 2, 3},
};

ModelOptions unet_model(const UnetPreset& preset) {
  ModelOptions model;
  model.preset = preset.name;
  model.family = kUnetFamily;
  model.unet.channels.clear();
  for (const int64_t channels : preset.channels)
    if (channels > 0) model.unet.channels.push_back(channels);
  model.unet.image = preset.image;
  model.unet.attention_from = preset.attention_from;
  model.unet.residual_blocks = preset.residual_blocks;
  model.unet.colors = preset.colors;
  model.modules = unet_chain(model.unet);
  model.shape = modules_options(*model.modules);
  return model;
}

ShapeOptions gpt_options(const Preset& preset) {
  ShapeOptions shape;
  shape.layers = preset.layers;
  shape.heads = shape.kv_heads = preset.heads;
  shape.width = preset.width;
  shape.ffn_width = 4 * preset.width;
  shape.context = preset.context;
  shape.bias = preset.bias;
  return shape;
}

ShapeOptions llama_options(const LlamaPreset& preset) {
  ShapeOptions shape;
  shape.layers = preset.layers;
  shape.heads = preset.heads;
  shape.kv_heads = preset.kv_heads;
  shape.width = preset.width;
  shape.ffn_width = preset.ffn_width;
  shape.context = preset.context;
  shape.bias = false;
  shape.tied_head = preset.tied_head;
  shape.rope.theta = preset.theta;
  shape.rope.factor = preset.factor;
  return shape;
}

ShapeOptions family_options(const FamilyPreset& preset) {
  ShapeOptions shape =
      llama_options({preset.name, preset.layers, preset.heads, preset.kv_heads, preset.width,
                     preset.ffn_width, preset.context, preset.theta, 1.0, preset.tied_head});
  shape.bias = block_style(preset.family).biases == Biases::kQkv;
  shape.norm_eps = preset.norm_eps;
  shape.head_width = preset.head_width;
  shape.window = preset.window;
  return shape;
}

ShapeOptions gemma_options(const GemmaPreset& preset) {
  const bool capped = block_style(preset.family).score_cap;
  ShapeOptions shape = llama_options({preset.name, preset.layers, preset.heads, preset.kv_heads,
                                      preset.width, preset.ffn_width, preset.context,
                                      capped ? kGemma2Theta : kGemma3Theta, preset.factor, true});
  if (preset.factor != 1.0) shape.rope.original_context = 1;
  shape.norm_eps = 1e-6;
  shape.head_width = preset.head_width;
  shape.window = preset.window;
  shape.window_pattern = preset.pattern;
  shape.query_scalar = preset.query_scalar;
  if (capped) shape.score_cap = 50.0;
  if (capped) shape.logit_cap = 30.0;
  return shape;
}

}  // namespace

const std::vector<std::string>& model_preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Preset& preset : kPresets) list.emplace_back(preset.name);
    for (const LlamaPreset& preset : kLlamaPresets) list.emplace_back(preset.name);
    for (const FamilyPreset& preset : kFamilyPresets) list.emplace_back(preset.name);
    for (const GemmaPreset& preset : kGemmaPresets) list.emplace_back(preset.name);
    for (const UnetPreset& preset : kUnetPresets) list.emplace_back(preset.name);
    return list;
  }();
  return names;
}

ModelOptions model_preset(const std::string& name) {
  for (const UnetPreset& preset : kUnetPresets)
    if (name == preset.name) return unet_model(preset);
  for (const Preset& preset : kPresets)
    if (name == preset.name) return {name, "gpt2", gpt_options(preset)};
  for (const LlamaPreset& preset : kLlamaPresets)
    if (name == preset.name) return {name, "llama", llama_options(preset)};
  for (const FamilyPreset& preset : kFamilyPresets)
    if (name == preset.name) return {name, preset.family, family_options(preset)};
  for (const GemmaPreset& preset : kGemmaPresets)
    if (name == preset.name) return {name, preset.family, gemma_options(preset)};
  ErrorPlace place;
  place.key = "model.preset";
  throw UserError(fmt::format("model.preset: \"{}\" is not known; nearest: \"{}\"", name,
                              nearest_choice(name, model_preset_names())),
                  place);
}

}  // namespace strait
