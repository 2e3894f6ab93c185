// Named model sizes. Sources: nanoGPT's CPU setting of its character model; Radford et al. 2019
// (GPT-2); Brown et al. 2020, table 2.1 (GPT-3).
#include <fmt/format.h>

#include <array>

#include "strait/base/errors.h"
#include "strait/shape/shape.h"

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
    Preset{"nano-char", 4, 4, 128, 64, false},      Preset{"gpt2-124m", 12, 12, 768, 1024, true},
    Preset{"gpt2-350m", 24, 16, 1024, 1024, true},  Preset{"gpt2-774m", 36, 20, 1280, 1024, true},
    Preset{"gpt2-1558m", 48, 25, 1600, 1024, true}, Preset{"gpt3-125m", 12, 12, 768, 2048, true},
    Preset{"gpt3-350m", 24, 16, 1024, 2048, true},  Preset{"gpt3-760m", 24, 16, 1536, 2048, true},
    Preset{"gpt3-1.3b", 24, 16, 2048, 2048, true},  Preset{"gpt3-2.7b", 32, 32, 2560, 2048, true},
    Preset{"gpt3-6.7b", 32, 32, 4096, 2048, true},  Preset{"gpt3-13b", 40, 40, 5120, 2048, true},
    Preset{"gpt3-175b", 96, 96, 12288, 2048, true},
};

}  // namespace

const std::vector<std::string>& model_preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Preset& preset : kPresets) list.emplace_back(preset.name);
    return list;
  }();
  return names;
}

ModelOptions model_preset(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (name != preset.name) continue;
    ModelOptions options;
    options.preset = name;
    options.family = "gpt2";
    options.shape = {preset.layers,  preset.heads, preset.heads, preset.width, 4 * preset.width,
                     preset.context, preset.bias,  0.0,          true};
    return options;
  }
  ErrorPlace place;
  place.key = "model.preset";
  throw UserError(fmt::format("model.preset: \"{}\" is not known; nearest: \"{}\"", name,
                              nearest_choice(name, model_preset_names())),
                  place);
}

}  // namespace strait
