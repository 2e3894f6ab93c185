// Names and config.json of Llama and of the families that differ from it by a row here. Their
// query, key and value projections are rows of our attention.qkv, gate and up rows of our
// mlp.gate_up. RoPE turns the same pairs of a head here and there, (i, i + head_dim / 2), so the
// rows keep their order; Meta's own files, whose pairs are neighbours, are not of this form.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "strait/base/errors.h"
#include "strait/convert/hugging_face_config.h"
#include "strait/convert/hugging_face_family.h"

namespace strait::convert {
namespace {

/// A family in transformers, with what it takes for absent members.
struct Form {
  const char *family, *title, *architecture;
  int64_t kv_heads, head_width;  // 0: as many as heads; hidden_size / num_attention_heads
  int64_t ffn_width, context;
  double norm_eps;
};
constexpr std::array kForms = {
    Form{"llama", "Llama", "LlamaForCausalLM", 0, 0, 11008, 2048, 1e-6},
    Form{"mistral", "Mistral", "MistralForCausalLM", 8, 0, 14336, 131072, 1e-6},
    Form{"qwen2", "Qwen 2", "Qwen2ForCausalLM", 32, 0, 22016, 32768, 1e-6},
    Form{"qwen3", "Qwen 3", "Qwen3ForCausalLM", 32, 128, 22016, 32768, 1e-6},
    Form{"olmo2", "OLMo 2", "Olmo2ForCausalLM", 0, 0, 11008, 2048, 1e-5},
};
constexpr int64_t kMistralWindow = 4096;

struct Layer {
  const char* ours;
  std::array<const char*, 3> theirs;  // rows one after the other; null: no more
};
// post_attention_layernorm stands before the MLP, but where norms stand behind the branches.
constexpr std::array kLayers = {
    Layer{"attention_norm", {"input_layernorm", nullptr, nullptr}},
    Layer{"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
    Layer{"attention.output", {"self_attn.o_proj", nullptr, nullptr}},
    Layer{"attention.query_norm", {"self_attn.q_norm", nullptr, nullptr}},
    Layer{"attention.key_norm", {"self_attn.k_norm", nullptr, nullptr}},
    Layer{"attention_post_norm", {"post_attention_layernorm", nullptr, nullptr}},
    Layer{"mlp_norm", {"post_attention_layernorm", nullptr, nullptr}},
    Layer{"mlp_post_norm", {"post_feedforward_layernorm", nullptr, nullptr}},
    Layer{"mlp.gate_up", {"mlp.gate_proj", "mlp.up_proj", nullptr}},
    Layer{"mlp.down", {"mlp.down_proj", nullptr, nullptr}}};

/// Rows of part `index` of a layer of `rows` rows.
int64_t rows_of(const ShapeOptions& shape, const Layer& layer, size_t index, int64_t rows) {
  if (layer.theirs[1] == nullptr) return rows;
  if (layer.theirs[2] == nullptr) return rows / 2;
  return shape.head_elements() * (index == 0 ? shape.heads : shape.kv_heads);
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

/// Heads, and their width where it does not follow from the others.
void read_heads(const ForeignConfig& config, const Form& form, ShapeOptions& shape) {
  shape.heads = config.integer("num_attention_heads", 32);
  shape.kv_heads =
      config.integer("num_key_value_heads", form.kv_heads > 0 ? form.kv_heads : shape.heads);
  if (shape.heads % shape.kv_heads != 0)
    config.refuse(
        "num_key_value_heads",
        fmt::format("= {} does not divide num_attention_heads = {}", shape.kv_heads, shape.heads));
  shape.head_width = config.integer("head_dim", std::max<int64_t>(form.head_width, 1));
  if (config.find("head_dim") == nullptr && form.head_width == 0) shape.head_width = 0;
  if (shape.head_width == 0 && shape.width % (2 * shape.heads) != 0)
    config.refuse("num_attention_heads",
                  fmt::format("= {} does not cut hidden_size = {} into heads of an even width",
                              shape.heads, shape.width));
  if (shape.head_width % 2 != 0)
    config.refuse("head_dim", fmt::format("= {} is odd, but RoPE turns pairs", shape.head_width));
  if (shape.head_width * shape.heads == shape.width) shape.head_width = 0;
}

bool read_biases(const ForeignConfig& config, Biases biases) {
  if (biases == Biases::kQkv) return true;
  if (biases == Biases::kNone) {
    config.require_flag("attention_bias", false);
    return false;
  }
  const bool bias = config.flag("attention_bias", false);
  if (config.flag("mlp_bias", false) != bias)
    config.refuse("mlp_bias",
                  fmt::format("is {}, but attention_bias is {}; our model has biases in "
                              "all linear layers or in none",
                              !bias, bias));
  return bias;
}

/// Absent, Mistral's window is its default; null, there is none.
int64_t read_window(const ForeignConfig& config, const Json& json, bool windows) {
  if (windows && json.find("sliding_window") == nullptr) return kMistralWindow;
  if (windows && config.find("sliding_window") != nullptr)
    return config.integer("sliding_window", kMistralWindow);
  config.require_flag("use_sliding_window", false);
  return 0;
}

/// Members that only some of the families have.
void add_own_members(const ShapeOptions& shape, const BlockStyle& style, Json& config) {
  if (style.windows) {
    config["sliding_window"] = shape.window > 0 ? Json(shape.window) : Json();
  } else if (style.biases == Biases::kQkv || style.query_key_norm == QueryKeyNorm::kHead) {
    config["use_sliding_window"] = false;
    config["sliding_window"] = Json();
  }
  if (style.biases == Biases::kAll) config["mlp_bias"] = shape.bias;
  if (style.biases != Biases::kQkv && !style.windows) config["attention_bias"] = shape.bias;
}

class RotaryFamily : public ForeignFamily {
 public:
  explicit RotaryFamily(const Form& form) : form_(form), style_(block_style(form.family)) {}
  std::string title() const override { return form_.title; }
  std::string prefix() const override { return "model."; }
  std::string embedding() const override { return "embed_tokens.weight"; }
  bool is_ignored(const std::string& name) const override {
    return name.ends_with(".rotary_emb.inv_freq");
  }
  ModelShape exported(const ModelShape& model) const override {
    ShapeOptions options = model.options;
    if (style_.biases == Biases::kQkv) options.bias = true;
    return model_shape({"", form_.family, options}, model.vocabulary);
  }

  std::vector<ForeignPart> parts(const ModelShape& model,
                                 const ParameterShape& parameter) const override;
  Json config(const ShapeOptions& shape, Dtype dtype, const Tokenizer& tokenizer,
              std::vector<std::string>& notes) const override;
  ShapeOptions shape(const Json& config, const std::string& path,
                     std::vector<std::string>& notes) const override;

 private:
  const Form& form_;
  BlockStyle style_;
};

std::vector<ForeignPart> RotaryFamily::parts(const ModelShape& model,
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
         "not a parameter of the family");
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
  ensure(!list.empty(), "not a parameter of the family");
  return list;
}

Json RotaryFamily::config(const ShapeOptions& shape, Dtype dtype, const Tokenizer& tokenizer,
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
    notes.push_back(
        fmt::format("attention_dropout = {}: Hugging Face's {} drops nowhere else, our model also "
                    "behind the embedding and in the residual branches",
                    shape.dropout, form_.title));
  Json config =
      Json::object({{"architectures", std::vector<std::string>{form_.architecture}},
                    {"model_type", form_.family},
                    {"vocab_size", std::max(shape.vocabulary, tokenizer.vocabulary_size())},
                    {"max_position_embeddings", shape.context},
                    {"hidden_size", shape.width},
                    {"intermediate_size", shape.ffn_width},
                    {"num_hidden_layers", shape.layers},
                    {"num_attention_heads", shape.heads},
                    {"num_key_value_heads", shape.kv_heads},
                    {"head_dim", shape.head_elements()},
                    {"hidden_act", "silu"},
                    {"rms_norm_eps", shape.norm_eps},
                    {"rope_theta", shape.rope.theta},
                    {"rope_scaling", scaling},
                    {"attention_dropout", shape.dropout},
                    {"initializer_range", 0.02},
                    {"tie_word_embeddings", shape.tied_head},
                    {"use_cache", true},
                    {"bos_token_id", Json()},
                    {"eos_token_id", end ? Json(static_cast<int64_t>(*end)) : Json()},
                    {"torch_dtype", dtype == Dtype::kFloat64 ? "float64" : "float32"}});
  add_own_members(shape, style_, config);
  return config;
}

ShapeOptions RotaryFamily::shape(const Json& json, const std::string& path,
                                 std::vector<std::string>& notes) const {
  const ForeignConfig config(json, path);
  const Json* activation = config.find("hidden_act");
  if (activation != nullptr && activation->dump() != "\"silu\"")
    config.refuse("hidden_act",
                  fmt::format("is {}; our model computes \"silu\"", activation->dump()));
  ShapeOptions shape;
  shape.layers = config.integer("num_hidden_layers", 32);
  shape.width = config.integer("hidden_size", 4096);
  read_heads(config, form_, shape);
  shape.ffn_width = config.integer("intermediate_size", form_.ffn_width);
  shape.context = config.integer("max_position_embeddings", form_.context);
  shape.bias = read_biases(config, style_.biases);
  shape.window = read_window(config, json, style_.windows);
  shape.tied_head = config.flag("tie_word_embeddings", false);
  shape.norm_eps = config.positive("rms_norm_eps", form_.norm_eps);
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

const ForeignFamily* rotary_family(const std::string& family) {
  static const std::vector<RotaryFamily> families(kForms.begin(), kForms.end());
  for (size_t i = 0; i < families.size(); ++i)
    if (family == kForms[i].family) return &families[i];
  return nullptr;
}

}  // namespace strait::convert
