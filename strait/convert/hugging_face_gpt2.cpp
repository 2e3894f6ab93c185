// GPT-2's names and config.json.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "strait/base/errors.h"
#include "strait/convert/hugging_face_config.h"
#include "strait/convert/hugging_face_family.h"

namespace strait::convert {
namespace {

/// Layers of a block: ours, theirs, and whether the weight is a Conv1D.
struct Layer {
  const char* ours;
  const char* theirs;
  bool linear;
};
constexpr std::array kLayers = {Layer{"attention_norm", "ln_1", false},
                                Layer{"attention.qkv", "attn.c_attn", true},
                                Layer{"attention.output", "attn.c_proj", true},
                                Layer{"mlp_norm", "ln_2", false},
                                Layer{"mlp.up", "mlp.c_fc", true},
                                Layer{"mlp.down", "mlp.c_proj", true}};

// All are 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
constexpr std::array kTanhGelus = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};

void check_functions(const ForeignConfig& config) {
  if (const Json* activation = config.find("activation_function")) {
    const auto same = [&](const char* name) { return activation->dump() == Json(name).dump(); };
    if (std::none_of(kTanhGelus.begin(), kTanhGelus.end(), same))
      config.refuse("activation_function",
                    fmt::format("is {}; our model computes GELU in its tanh form, \"gelu_new\" "
                                "(also named gelu_pytorch_tanh and gelu_fast)",
                                activation->dump()));
  }
  config.require_flag("scale_attn_weights", true);
  config.require_flag("scale_attn_by_inverse_layer_idx", false);
  config.require_flag("add_cross_attention", false);
}

/// Their name of a parameter, and whether it is a Conv1D.
std::pair<std::string, bool> name_of(const std::string& parameter) {
  static const std::pair<const char*, const char*> kOutside[] = {
      {"embedding.token.weight", "wte.weight"},
      {"embedding.position.weight", "wpe.weight"},
      {"head.weight", "lm_head.weight"},
      {"head.norm.weight", "ln_f.weight"},
      {"head.norm.bias", "ln_f.bias"}};
  for (const auto& [ours, theirs] : kOutside)
    if (parameter == ours) return {theirs, false};
  const size_t dot = parameter.find('.', 7);  // behind "blocks.3"
  ensure(parameter.starts_with("blocks.") && dot != std::string::npos, "not a parameter of GPT-2");
  const std::string number = parameter.substr(7, dot - 7), rest = parameter.substr(dot + 1);
  for (const Layer& layer : kLayers)
    for (const char* kind : {"weight", "bias"})
      if (rest == fmt::format("{}.{}", layer.ours, kind))
        return {fmt::format("h.{}.{}.{}", number, layer.theirs, kind),
                layer.linear && *kind == 'w'};
  throw InternalError("not a parameter of GPT-2: " + parameter);
}

class Gpt2Family : public ForeignFamily {
 public:
  std::string title() const override { return "GPT-2"; }
  std::string model_type() const override { return "gpt2"; }
  std::string prefix() const override { return "transformer."; }
  std::string embedding() const override { return "wte.weight"; }
  bool is_ignored(const std::string& name) const override {  // the causal mask
    return name.starts_with("h.") &&
           (name.ends_with(".attn.bias") || name.ends_with(".masked_bias"));
  }

  std::vector<ForeignPart> parts(const ModelShape&,
                                 const ParameterShape& parameter) const override {
    const auto [name, transposed] = name_of(parameter.name);
    std::vector<int64_t> dims = parameter.dims;
    if (transposed) std::reverse(dims.begin(), dims.end());
    return {{name, dims, name != "lm_head.weight", transposed}};
  }

  ModelShape exported(const ModelShape& model) const override {
    ShapeOptions options = model.options;
    options.bias = true;
    return gpt2_shape(options, model.vocabulary);
  }

  Json config(const ShapeOptions& shape, Dtype dtype, const Tokenizer& tokenizer,
              std::vector<std::string>&) const override;
  ShapeOptions shape(const Json& config, const std::string& path,
                     std::vector<std::string>& notes) const override;
};

Json Gpt2Family::config(const ShapeOptions& shape, Dtype dtype, const Tokenizer& tokenizer,
                        std::vector<std::string>&) const {
  const auto end = tokenizer.end_of_document();
  const Json end_token = end ? Json(static_cast<int64_t>(*end)) : Json();
  return Json::object({{"architectures", std::vector<std::string>{"GPT2LMHeadModel"}},
                       {"model_type", "gpt2"},
                       {"vocab_size", std::max(shape.vocabulary, tokenizer.vocabulary_size())},
                       {"n_positions", shape.context},
                       {"n_ctx", shape.context},
                       {"n_embd", shape.width},
                       {"n_layer", shape.layers},
                       {"n_head", shape.heads},
                       {"n_inner", shape.ffn_width},
                       {"activation_function", "gelu_new"},
                       {"layer_norm_epsilon", shape.norm_eps},
                       {"embd_pdrop", shape.dropout},
                       {"attn_pdrop", shape.dropout},
                       {"resid_pdrop", shape.dropout},
                       {"initializer_range", 0.02},
                       {"scale_attn_weights", true},
                       {"scale_attn_by_inverse_layer_idx", false},
                       {"reorder_and_upcast_attn", false},
                       {"tie_word_embeddings", shape.tied_head},
                       {"use_cache", true},
                       {"bos_token_id", end_token},
                       {"eos_token_id", end_token},
                       {"torch_dtype", dtype == Dtype::kFloat64 ? "float64" : "float32"}});
}

ShapeOptions Gpt2Family::shape(const Json& json, const std::string& path,
                               std::vector<std::string>& notes) const {
  const ForeignConfig config(json, path);
  check_functions(config);
  ShapeOptions shape;
  shape.layers = config.integer("n_layer", 12, "model.shape.layers");
  shape.heads = shape.kv_heads = config.integer("n_head", 12, "model.shape.heads");
  shape.width = config.integer("n_embd", 768, "model.shape.width");
  if (shape.width % shape.heads != 0)
    config.refuse("n_head",
                  fmt::format("= {} does not divide n_embd = {}", shape.heads, shape.width));
  shape.ffn_width = config.integer("n_inner", 4 * shape.width, "model.shape.ffn_width");
  shape.context = config.integer(
      "n_positions", config.integer("n_ctx", 1024, "model.shape.context"), "model.shape.context");
  shape.bias = true;
  shape.tied_head = config.flag("tie_word_embeddings", true);
  shape.norm_eps = config.number("layer_norm_epsilon", 1e-5, "model.shape.norm_eps");
  const auto dropout = [&](const char* key) {
    return config.number(key, 0.1, "model.shape.dropout");
  };
  shape.dropout = dropout("resid_pdrop");
  const double embedding = dropout("embd_pdrop"), attention = dropout("attn_pdrop");
  if (embedding != shape.dropout || attention != shape.dropout)
    notes.push_back(
        fmt::format("model.shape.dropout = {} as resid_pdrop, though embd_pdrop = {} "
                    "and attn_pdrop = {}: our model has one rate",
                    shape.dropout, embedding, attention));
  return shape;
}

}  // namespace

const ForeignFamily& gpt2_family() {
  static const Gpt2Family family;
  return family;
}

}  // namespace strait::convert
