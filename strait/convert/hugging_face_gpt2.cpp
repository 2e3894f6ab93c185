#include "strait/convert/hugging_face_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "strait/base/errors.h"

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

/// A member of config.json, whose absence means what transformers takes then.
class Config {
 public:
  Config(const Json& json, const std::string& path) : json_(json), path_(path) {}

  [[noreturn]] void refuse(const char* key, const std::string& what) const {
    ErrorPlace place;
    place.file = path_;
    place.key = key;
    throw UserError(fmt::format("{}: {} {}", path_, key, what), place);
  }
  const Json* find(const char* key) const {
    const Json* found = json_.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  int64_t integer(const char* key, int64_t otherwise) const {
    const Json* found = find(key);
    if (found == nullptr) return otherwise;
    if (!found->is_integer() || found->as_integer() < 1)
      refuse(key, fmt::format("is {}, not a size", found->dump()));
    return found->as_integer();
  }
  double number(const char* key, double otherwise) const {
    const Json* found = find(key);
    if (found == nullptr) return otherwise;
    if (!found->is_number()) refuse(key, fmt::format("is {}, not a number", found->dump()));
    return found->as_number();
  }
  bool flag(const char* key, bool otherwise) const {
    const Json* found = find(key);
    if (found == nullptr) return otherwise;
    if (!found->is_bool()) refuse(key, fmt::format("is {}, not true or false", found->dump()));
    return found->as_bool();
  }
  void require_flag(const char* key, bool wanted) const {
    if (flag(key, wanted) != wanted)
      refuse(key, fmt::format("is {}; our model computes {} only", !wanted, wanted));
  }

 private:
  const Json& json_;
  const std::string& path_;
};

void check_functions(const Config& config) {
  const Json* type = config.find("model_type");
  if (type != nullptr && type->dump() != "\"gpt2\"")
    config.refuse("model_type", fmt::format("is {}; supported: \"gpt2\"", type->dump()));
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

}  // namespace

ForeignName foreign_name(const std::string& parameter) {
  static const std::pair<const char*, const char*> kOutside[] = {
      {"embedding.token.weight", "wte.weight"},
      {"embedding.position.weight", "wpe.weight"},
      {"head.norm.weight", "ln_f.weight"},
      {"head.norm.bias", "ln_f.bias"}};
  if (parameter == "head.weight") return {"lm_head.weight", false, false};
  for (const auto& [ours, theirs] : kOutside)
    if (parameter == ours) return {theirs, true, false};
  const size_t dot = parameter.find('.', 7);  // behind "blocks.3"
  ensure(parameter.starts_with("blocks.") && dot != std::string::npos, "not a parameter of GPT-2");
  const std::string number = parameter.substr(7, dot - 7), rest = parameter.substr(dot + 1);
  for (const Layer& layer : kLayers)
    for (const char* kind : {"weight", "bias"})
      if (rest == fmt::format("{}.{}", layer.ours, kind))
        return {fmt::format("h.{}.{}.{}", number, layer.theirs, kind), true,
                layer.linear && *kind == 'w'};
  throw InternalError("not a parameter of GPT-2: " + parameter);
}

bool is_mask(const std::string& name) {
  return name.starts_with("h.") && (name.ends_with(".attn.bias") || name.ends_with(".masked_bias"));
}

Json config_json(const ShapeOptions& shape, Dtype dtype, const Tokenizer& tokenizer) {
  const auto end = tokenizer.end_of_document();
  const Json end_token = end ? Json(static_cast<int64_t>(*end)) : Json();
  return Json::object({{"architectures", std::vector<std::string>{"GPT2LMHeadModel"}},
                       {"model_type", "gpt2"},
                       {"vocab_size", tokenizer.vocabulary_size()},
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

ShapeOptions shape_of_config(const Json& json, const std::string& path,
                             std::vector<std::string>& notes) {
  const Config config(json, path);
  check_functions(config);
  ShapeOptions shape;
  shape.layers = config.integer("n_layer", 12);
  shape.heads = shape.kv_heads = config.integer("n_head", 12);
  shape.width = config.integer("n_embd", 768);
  if (shape.width % shape.heads != 0)
    config.refuse("n_head",
                  fmt::format("= {} does not divide n_embd = {}", shape.heads, shape.width));
  shape.ffn_width = config.integer("n_inner", 4 * shape.width);
  shape.context = config.integer("n_positions", config.integer("n_ctx", 1024));
  shape.bias = true;
  shape.tied_head = config.flag("tie_word_embeddings", true);
  shape.norm_eps = config.number("layer_norm_epsilon", 1e-5);
  if (!(shape.norm_eps > 0.0)) config.refuse("layer_norm_epsilon", "is not above 0");
  shape.dropout = config.number("resid_pdrop", 0.1);
  const double embedding = config.number("embd_pdrop", 0.1),
               attention = config.number("attn_pdrop", 0.1);
  if (embedding != shape.dropout || attention != shape.dropout)
    notes.push_back(
        fmt::format("model.shape.dropout = {} as resid_pdrop, though embd_pdrop = {} "
                    "and attn_pdrop = {}: our model has one rate",
                    shape.dropout, embedding, attention));
  return shape;
}

}  // namespace strait::convert
