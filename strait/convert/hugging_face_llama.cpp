// Llama's names and config.json. Their query, key and value projections are rows of our
// attention.qkv, gate and up rows of our mlp.gate_up. RoPE turns the same pairs of a head here and
// there, (i, i + head_dim / 2), so the rows keep their order; Meta's own files, whose pairs are
// neighbours, are not of this form.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "strait/base/errors.h"
#include "strait/convert/hugging_face_config.h"
#include "strait/convert/hugging_face_family.h"

namespace strait::convert {
namespace {

struct Layer {
  const char* ours;
  std::array<const char*, 3> theirs;  // rows one after the other; null: no more
};
constexpr std::array kLayers = {
    Layer{"attention_norm", {"input_layernorm", nullptr, nullptr}},
    Layer{"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
    Layer{"attention.output", {"self_attn.o_proj", nullptr, nullptr}},
    Layer{"mlp_norm", {"post_attention_layernorm", nullptr, nullptr}},
    Layer{"mlp.gate_up", {"mlp.gate_proj", "mlp.up_proj", nullptr}},
    Layer{"mlp.down", {"mlp.down_proj", nullptr, nullptr}}};

/// Rows of part `index` of a layer of `rows` rows.
int64_t rows_of(const ShapeOptions& shape, const Layer& layer, size_t index, int64_t rows) {
  if (layer.theirs[1] == nullptr) return rows;
  if (layer.theirs[2] == nullptr) return rows / 2;
  return shape.width / shape.heads * (index == 0 ? shape.heads : shape.kv_heads);
}

/// rope_scaling, or the members of rope_parameters that stand for it in newer files.
void read_scaling(const ForeignConfig& config, const Json& json, const std::string& path,
                  RopeOptions& rope) {
  const ForeignConfig scaling(json, path);
  const Json* type = scaling.find("rope_type");
  if (type == nullptr) type = scaling.find("type");
  const std::string name = type == nullptr ? "\"default\"" : type->dump();
  if (name == "\"default\"") return;
  if (name != "\"llama3\"")
    config.refuse(
        "rope_scaling",
        fmt::format("has the type {}; our model computes \"default\" and \"llama3\"", name));
  rope.factor = scaling.positive("factor", 8.0);
  rope.low_frequency_factor = scaling.positive("low_freq_factor", 1.0);
  rope.high_frequency_factor = scaling.positive("high_freq_factor", 4.0);
  rope.original_context = scaling.integer("original_max_position_embeddings", 8192);
}

RopeOptions read_rope(const ForeignConfig& config, const std::string& path) {
  RopeOptions rope;
  rope.theta = config.positive("rope_theta", 10000.0);
  if (const Json* parameters = config.find("rope_parameters")) {
    rope.theta = ForeignConfig(*parameters, path).positive("rope_theta", rope.theta);
    read_scaling(config, *parameters, path, rope);
  }
  if (const Json* scaling = config.find("rope_scaling")) read_scaling(config, *scaling, path, rope);
  return rope;
}

class LlamaFamily : public ForeignFamily {
 public:
  std::string title() const override { return "Llama"; }
  std::string prefix() const override { return "model."; }
  std::string embedding() const override { return "embed_tokens.weight"; }
  bool is_ignored(const std::string& name) const override {
    return name.ends_with(".rotary_emb.inv_freq");
  }
  ModelShape exported(const ModelShape& model) const override { return model; }

  std::vector<ForeignPart> parts(const ModelShape& model,
                                 const ParameterShape& parameter) const override;
  Json config(const ShapeOptions& shape, Dtype dtype, const Tokenizer& tokenizer,
              std::vector<std::string>& notes) const override;
  ShapeOptions shape(const Json& config, const std::string& path,
                     std::vector<std::string>& notes) const override;
};

std::vector<ForeignPart> LlamaFamily::parts(const ModelShape& model,
                                            const ParameterShape& parameter) const {
  static const std::pair<const char*, const char*> kOutside[] = {
      {"embedding.token.weight", "embed_tokens.weight"},
      {"head.weight", "lm_head.weight"},
      {"head.norm.weight", "norm.weight"}};
  for (const auto& [ours, theirs] : kOutside)
    if (parameter.name == ours)
      return {{theirs, parameter.dims, theirs != std::string("lm_head.weight"), false}};
  const size_t dot = parameter.name.find('.', 7);  // behind "blocks.3"
  ensure(parameter.name.starts_with("blocks.") && dot != std::string::npos,
         "not a parameter of Llama");
  const std::string number = parameter.name.substr(7, dot - 7),
                    rest = parameter.name.substr(dot + 1);
  std::vector<ForeignPart> list;
  for (const Layer& layer : kLayers)
    for (const char* kind : {"weight", "bias"})
      for (size_t i = 0; i < 3 && rest == fmt::format("{}.{}", layer.ours, kind); ++i) {
        if (layer.theirs[i] == nullptr) break;
        std::vector<int64_t> dims = parameter.dims;
        dims[0] = rows_of(model.options, layer, i, dims[0]);
        list.push_back({fmt::format("layers.{}.{}.{}", number, layer.theirs[i], kind), dims});
      }
  ensure(!list.empty(), "not a parameter of Llama");
  return list;
}

Json LlamaFamily::config(const ShapeOptions& shape, Dtype dtype, const Tokenizer& tokenizer,
                         std::vector<std::string>& notes) const {
  const auto end = tokenizer.end_of_document();
  Json scaling;
  if (shape.rope.factor != 1.0)
    scaling = Json::object({{"rope_type", "llama3"},
                            {"factor", shape.rope.factor},
                            {"low_freq_factor", shape.rope.low_frequency_factor},
                            {"high_freq_factor", shape.rope.high_frequency_factor},
                            {"original_max_position_embeddings", shape.rope.original_context}});
  if (shape.dropout > 0.0)
    notes.push_back(fmt::format(
        "attention_dropout = {}: Hugging Face's Llama drops nowhere else, our model also "
        "behind the embedding and in the residual branches",
        shape.dropout));
  return Json::object({{"architectures", std::vector<std::string>{"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"vocab_size", tokenizer.vocabulary_size()},
                       {"max_position_embeddings", shape.context},
                       {"hidden_size", shape.width},
                       {"intermediate_size", shape.ffn_width},
                       {"num_hidden_layers", shape.layers},
                       {"num_attention_heads", shape.heads},
                       {"num_key_value_heads", shape.kv_heads},
                       {"head_dim", shape.width / shape.heads},
                       {"hidden_act", "silu"},
                       {"rms_norm_eps", shape.norm_eps},
                       {"rope_theta", shape.rope.theta},
                       {"rope_scaling", scaling},
                       {"attention_bias", shape.bias},
                       {"mlp_bias", shape.bias},
                       {"attention_dropout", shape.dropout},
                       {"initializer_range", 0.02},
                       {"tie_word_embeddings", shape.tied_head},
                       {"use_cache", true},
                       {"bos_token_id", Json()},
                       {"eos_token_id", end ? Json(static_cast<int64_t>(*end)) : Json()},
                       {"torch_dtype", dtype == Dtype::kFloat64 ? "float64" : "float32"}});
}

ShapeOptions LlamaFamily::shape(const Json& json, const std::string& path,
                                std::vector<std::string>& notes) const {
  const ForeignConfig config(json, path);
  const Json* activation = config.find("hidden_act");
  if (activation != nullptr && activation->dump() != "\"silu\"")
    config.refuse("hidden_act",
                  fmt::format("is {}; our model computes \"silu\"", activation->dump()));
  ShapeOptions shape;
  shape.layers = config.integer("num_hidden_layers", 32);
  shape.heads = config.integer("num_attention_heads", 32);
  shape.kv_heads = config.integer("num_key_value_heads", shape.heads);
  if (shape.heads % shape.kv_heads != 0)
    config.refuse(
        "num_key_value_heads",
        fmt::format("= {} does not divide num_attention_heads = {}", shape.kv_heads, shape.heads));
  shape.width = config.integer("hidden_size", 4096);
  if (shape.width % (2 * shape.heads) != 0)
    config.refuse("num_attention_heads",
                  fmt::format("= {} does not cut hidden_size = {} into heads of an even width",
                              shape.heads, shape.width));
  const int64_t head_width = shape.width / shape.heads;
  if (config.integer("head_dim", head_width) != head_width)
    config.refuse("head_dim",
                  fmt::format("is not hidden_size / num_attention_heads = {}, which our "
                              "model computes",
                              head_width));
  shape.ffn_width = config.integer("intermediate_size", 11008);
  shape.context = config.integer("max_position_embeddings", 2048);
  shape.bias = config.flag("attention_bias", false);
  if (config.flag("mlp_bias", false) != shape.bias)
    config.refuse("mlp_bias",
                  fmt::format("is {}, but attention_bias is {}; our model has biases in "
                              "all linear layers or in none",
                              !shape.bias, shape.bias));
  shape.tied_head = config.flag("tie_word_embeddings", false);
  shape.norm_eps = config.positive("rms_norm_eps", 1e-6);
  shape.rope = read_rope(config, path);
  shape.dropout = config.number("attention_dropout", 0.0);
  if (shape.dropout > 0.0)
    notes.push_back(
        fmt::format("model.shape.dropout = {} as attention_dropout: our model drops also "
                    "behind the embedding and in the residual branches",
                    shape.dropout));
  return shape;
}

}  // namespace

const ForeignFamily& llama_family() {
  static const LlamaFamily family;
  return family;
}

}  // namespace strait::convert
