// A folder of TorchScript blocks as tools/export_modules writes one, made here: a small mixer over
// tokens. Its mathematics in plain LibTorch stands beside it.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/checkpoint/files/safetensors.h"

namespace strait::test {

using Tensors = std::map<std::string, at::Tensor>;  // by name

struct TestModule {
  std::string name;
  std::string code;  // TorchScript: def forward(self, x): ...
  std::vector<int64_t> output;
  Tensors parameters;
};

inline constexpr int64_t kMixerContext = 6, kMixerWidth = 10, kMixerNarrow = 7,
                         kMixerVocabulary = 256;

/// Random, the same each time.
inline at::Tensor test_values(std::vector<int64_t> dims, double scale, double offset = 0.0) {
  static int64_t seed = 0;
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  const at::Tensor at = at::arange(count, at::kDouble) * 12.9898 + 78.233 * double(++seed % 1000);
  const at::Tensor noise = at::frac(at::sin(at) * 43758.5453);
  return (noise * scale + offset).reshape(dims).to(at::kFloat);
}

/// Tokens, two mixers, a narrower middle, logits or losses.
inline std::vector<TestModule> mixer_modules(bool own_loss = false, bool floats = false) {
  const int64_t t = kMixerContext, c = kMixerWidth, n = kMixerNarrow, v = kMixerVocabulary;
  std::vector<TestModule> modules;
  if (floats)
    modules.push_back(
        {"embedding",
         "def forward(self, x):\n  return x / 128.0 * self.weight + self.position\n",
         {t, c},
         {{"weight", test_values({1, c}, 0.5)}, {"position", test_values({t, c}, 0.1)}}});
  else
    modules.push_back(
        {"embedding",
         "def forward(self, x):\n"
         "  return torch.embedding(self.weight, x) + self.position\n",
         {t, c},
         {{"weight", test_values({v, c}, 0.1)}, {"position", test_values({t, c}, 0.1)}}});
  for (const char* name : {"mixer.0", "mixer.1"})
    modules.push_back({name,
                       "def forward(self, x):\n"
                       "  h = torch.layer_norm(x, [10], self.scale, self.shift, 1e-5)\n"
                       "  y = x + torch.matmul(torch.tril(self.tokens), h)\n"
                       "  z = torch.gelu(torch.matmul(y, self.up.t()))\n"
                       "  return y + torch.matmul(z, self.down.t())\n",
                       {t, c},
                       {{"scale", test_values({c}, 0.1, 1.0)},
                        {"shift", test_values({c}, 0.1)},
                        {"tokens", test_values({t, t}, 0.3)},
                        {"up", test_values({13, c}, 0.3)},
                        {"down", test_values({c, 13}, 0.3)}}});
  modules.push_back(
      {"narrow",
       "def forward(self, x):\n  return torch.tanh(torch.matmul(x, self.weight.t()))\n",
       {t, n},
       {{"weight", test_values({n, c}, 0.4)}}});
  if (own_loss)
    modules.push_back({"head",
                       "def forward(self, x, targets):\n"
                       "  logits = torch.matmul(x, self.weight.t()) + self.bias\n"
                       "  p = torch.log_softmax(logits, -1)\n"
                       "  return -torch.gather(p, -1, targets.unsqueeze(-1)).squeeze(-1)\n",
                       {t},
                       {{"weight", test_values({v, n}, 0.2)}, {"bias", test_values({v}, 0.1)}}});
  else
    modules.push_back({"head",
                       "def forward(self, x):\n"
                       "  return torch.matmul(x, self.weight.t()) + self.bias\n",
                       {t, v},
                       {{"weight", test_values({v, n}, 0.2)}, {"bias", test_values({v}, 0.1)}}});
  return modules;
}

inline void save_module(const TestModule& module, const std::string& path) {
  torch::jit::Module script("__torch__.Block_" + std::to_string(std::hash<std::string>{}(path)));
  for (const auto& [name, values] : module.parameters)
    script.register_parameter(name, at::zeros({1}).expand(values.sizes()), false);
  script.define(module.code);
  script.save(path);
}

inline Json module_json(const TestModule& module, const std::string& folder) {
  Json parameters = Json::array();
  for (const auto& [name, values] : module.parameters)
    parameters.push_back(
        Json::object({{"name", name}, {"dims", std::vector<int64_t>(values.sizes().vec())}}));
  const std::string file = module.name + ".pt";
  return Json::object(
      {{"name", module.name},
       {"file", file},
       {"bytes", static_cast<int64_t>(std::filesystem::file_size(folder + "/" + file))},
       {"output", module.output},
       {"forward_flops", 1000.0},
       {"parameters", parameters}});
}

inline Json write_modules(const std::vector<TestModule>& modules, const std::string& folder,
                          const std::string& input = "tokens",
                          const std::string& loss = "cross_entropy") {
  std::filesystem::create_directories(folder);
  Json blocks = Json::array();
  std::vector<checkpoint::TensorView> views;
  std::vector<at::Tensor> kept;
  for (const TestModule& module : modules) {
    save_module(module, folder + "/" + module.name + ".pt");
    blocks.push_back(module_json(module, folder));
    for (const auto& [name, values] : module.parameters) {
      const at::Tensor& whole = kept.emplace_back(values.contiguous());
      views.push_back({module.name + "." + name,
                       Dtype::kFloat32,
                       whole.sizes().vec(),
                       {static_cast<const std::byte*>(whole.data_ptr()), whole.nbytes()}});
    }
  }
  checkpoint::write_safetensors(folder + "/weights.safetensors", views);
  Json manifest = Json::object({{"format", "strait-modules"},
                                {"version", 1},
                                {"vocabulary", kMixerVocabulary},
                                {"context", kMixerContext},
                                {"input", input},
                                {"loss", loss},
                                {"weights", "weights.safetensors"},
                                {"blocks", blocks}});
  write_file_atomically(folder + "/modules.json", manifest.dump(2));
  return manifest;
}

/// The mean loss of all tokens of `inputs` [B, T], from parameters named "BLOCK.PARAMETER".
inline at::Tensor mixer_loss(const Tensors& all, const at::Tensor& inputs,
                             const at::Tensor& targets, bool floats = false) {
  at::Tensor x = floats ? inputs.to(all.at("embedding.weight").scalar_type()).unsqueeze(-1) /
                              128.0 * all.at("embedding.weight")
                        : at::embedding(all.at("embedding.weight"), inputs);
  x = x + all.at("embedding.position");
  for (const std::string name : {"mixer.0.", "mixer.1."}) {
    const at::Tensor h =
        at::layer_norm(x, {kMixerWidth}, all.at(name + "scale"), all.at(name + "shift"), 1e-5);
    x = x + at::matmul(all.at(name + "tokens").tril(), h);
    x = x + at::linear(at::gelu(at::linear(x, all.at(name + "up"))), all.at(name + "down"));
  }
  x = at::tanh(at::linear(x, all.at("narrow.weight")));
  const at::Tensor logits = at::linear(x, all.at("head.weight"), all.at("head.bias"));
  return at::cross_entropy_loss(logits.reshape({-1, kMixerVocabulary}), targets.reshape({-1}));
}

}  // namespace strait::test
