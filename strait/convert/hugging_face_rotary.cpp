// Names and config.json of Llama and of the families that differ from it by a row here. Their
// query, key and value projections are rows of our attention.qkv, gate and up rows of our
// mlp.gate_up. RoPE turns the same pairs of a head here and there, (i, i + head_dim / 2), so the
// rows keep their order; Meta's own files, whose pairs are neighbours, are not of this form.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "strait/base/errors.h"
#include "strait/convert/hugging_face_config.h"
#include "strait/convert/hugging_face_family.h"

namespace strait::convert {
namespace {

/// A family in transformers, with what it takes for absent members.
struct Form {
  const char *family, *type, *title, *architecture;
  int64_t kv_heads, head_width;  // 0: as many as heads; hidden_size / num_attention_heads
  int64_t ffn_width, context;
  double norm_eps;
  int64_t layers = 32, heads = 32, width = 4096;
  double theta = 1e4;
  bool tied_head = false;
  const char *activation = "hidden_act", *function = "silu";
  int64_t vocabulary = 0, pattern = 0;  // of Gemma
};
constexpr std::array kForms = {
    Form{"llama", "llama", "Llama", "LlamaForCausalLM", 0, 0, 11008, 2048, 1e-6},
    Form{"mistral", "mistral", "Mistral", "MistralForCausalLM", 8, 0, 14336, 131072, 1e-6},
    Form{"qwen2", "qwen2", "Qwen 2", "Qwen2ForCausalLM", 32, 0, 22016, 32768, 1e-6},
    Form{"qwen3", "qwen3", "Qwen 3", "Qwen3ForCausalLM", 32, 128, 22016, 32768, 1e-6},
    Form{"olmo2", "olmo2", "OLMo 2", "Olmo2ForCausalLM", 0, 0, 11008, 2048, 1e-5},
    Form{"gemma2", "gemma2", "Gemma 2", "Gemma2ForCausalLM", 4, 256, 9216, 8192, 1e-6, 26, 8, 2304,
         1e4, true, "hidden_activation", "gelu_pytorch_tanh", 256000, 2},
    Form{"gemma3", "gemma3_text", "Gemma 3", "Gemma3ForCausalLM", 4, 256, 9216, 131072, 1e-6, 26, 8,
         2304, 1e6, true, "hidden_activation", "gelu_pytorch_tanh", 262208, 6},
};
constexpr int64_t kWindow = 4096;  // of Mistral and Gemma
constexpr double kGemmaScalar = 256.0, kScoreCap = 50.0, kLogitCap = 30.0;
constexpr const char *kLocal = "sliding_attention", *kGlobal = "full_attention";

struct Layer {
  const char* ours;
  std::array<const char*, 3> theirs;  // rows one after the other; null: no more
};
// post_attention_layernorm stands before the MLP, but where norms stand behind the branches; where
// there are norms before the branches too, that before the MLP is kMlpNorm.
constexpr const char* kMlpNorm = "pre_feedforward_layernorm";
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

/// Rows of a matrix of theirs, `index` among those of a layer; null: no more.
const char* name_of(const Layer& layer, size_t index, const BlockStyle& style) {
  const bool both = style.norm_before && style.norm_behind;
  if (both && layer.ours == std::string("mlp_norm") && index == 0) return kMlpNorm;
  return layer.theirs[index];
}

constexpr const char *kTheta = "model.rope.theta", *kLocalTheta = "model.rope.local_theta";

void require_whole_heads(const ForeignConfig& config) {
  const Json* part = config.find("partial_rotary_factor");
  if (part != nullptr && !(part->is_number() && part->as_number() == 1.0))
    config.refuse("partial_rotary_factor",
                  fmt::format("is {}; our model turns all elements of a head", part->dump()));
}

/// rope_scaling, or the members of rope_parameters that stand for it in newer files.
void read_scaling(const ForeignConfig& config, const Json& json, const std::string& path,
                  const char* inside, RopeOptions& rope) {
  const ForeignConfig scaling(json, path, inside);
  require_whole_heads(scaling);
  const Json* type = scaling.find("rope_type");
  if (type == nullptr) type = scaling.find("type");
  if (type == nullptr && scaling.find("factor") != nullptr)
    config.refuse("rope_scaling", "has a factor and no rope_type");
  const std::string name = type == nullptr ? "\"default\"" : type->dump();
  if (name == "\"default\"") return;
  if (name != "\"llama3\"" && name != "\"linear\"")
    config.refuse("rope_scaling",
                  fmt::format("has the type {}; our model computes \"default\", \"linear\" and "
                              "\"llama3\"",
                              name));
  rope.factor = scaling.number("factor", name == "\"linear\"" ? 1.0 : 8.0, "model.rope.factor");
  if (rope.factor == 1.0) return;
  if (name == "\"linear\"") {
    rope.original_context = 1;
    return;
  }
  rope.low_frequency_factor =
      scaling.number("low_freq_factor", 1.0, "model.rope.low_frequency_factor");
  rope.high_frequency_factor =
      scaling.number("high_freq_factor", 4.0, "model.rope.high_frequency_factor");
  if (rope.high_frequency_factor <= rope.low_frequency_factor)
    scaling.refuse("high_freq_factor",
                   fmt::format("is {}, not above low_freq_factor = {}", rope.high_frequency_factor,
                               rope.low_frequency_factor));
  rope.original_context =
      scaling.integer("original_max_position_embeddings", 8192, "model.rope.original_context");
  const RopeOptions linear;
  if (rope.original_context == 1 && (rope.low_frequency_factor != linear.low_frequency_factor ||
                                     rope.high_frequency_factor != linear.high_frequency_factor))
    scaling.refuse("original_max_position_embeddings",
                   "is 1; our model then stretches all wave lengths alike");
}

/// Of the newer form of Gemma 3: parameters of each kind of layer.
const Json* rope_of_layers(const ForeignConfig& config, const std::string& path, const char* kind) {
  const Json* parameters = config.object("rope_parameters");
  return parameters == nullptr ? nullptr : ForeignConfig(*parameters, path).object(kind);
}

RopeOptions read_rope(const ForeignConfig& config, const std::string& path, const Form& form) {
  RopeOptions rope;
  rope.theta = config.number("rope_theta", form.theta, kTheta);
  const bool differs = block_style(form.family).local_rope;
  if (differs)
    rope.local_theta = config.number("rope_local_base_freq", rope.local_theta, kLocalTheta);
  if (const Json* local = differs ? rope_of_layers(config, path, kLocal) : nullptr) {
    RopeOptions read;
    read_scaling(config, *local, path, "rope_parameters", read);
    if (read.factor != 1.0)
      config.refuse("rope_parameters",
                    fmt::format("stretches {}; our model stretches {} alone", kLocal, kGlobal));
    rope.local_theta =
        ForeignConfig(*local, path).number("rope_theta", rope.local_theta, kLocalTheta);
  }
  const Json* parameters = rope_of_layers(config, path, kGlobal);
  if (parameters == nullptr) parameters = config.object("rope_parameters");
  if (parameters != nullptr) {
    rope.theta = ForeignConfig(*parameters, path).number("rope_theta", rope.theta, kTheta);
    read_scaling(config, *parameters, path, "rope_parameters", rope);
  }
  if (const Json* scaling = config.object("rope_scaling"))
    read_scaling(config, *scaling, path, "rope_scaling", rope);
  return rope;
}

/// Heads, and their width where it does not follow from the others.
void read_heads(const ForeignConfig& config, const Form& form, ShapeOptions& shape) {
  shape.heads = config.integer("num_attention_heads", form.heads, "model.shape.heads");
  shape.kv_heads =
      config.integer("num_key_value_heads", form.kv_heads > 0 ? form.kv_heads : shape.heads,
                     "model.shape.kv_heads");
  if (shape.heads % shape.kv_heads != 0)
    config.refuse(
        "num_key_value_heads",
        fmt::format("= {} does not divide num_attention_heads = {}", shape.kv_heads, shape.heads));
  shape.head_width =
      config.integer("head_dim", std::max<int64_t>(form.head_width, 1), "model.shape.head_width");
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

/// Absent, the window is its default; null, there is none.
int64_t read_window(const ForeignConfig& config, const Json& json, bool windows) {
  if (windows && json.find("sliding_window") == nullptr) return kWindow;
  if (windows && config.find("sliding_window") != nullptr)
    return config.integer("sliding_window", kWindow, "model.shape.window");
  config.require_flag("use_sliding_window", false);
  return 0;
}

/// Which layers attend all tokens, as layer_types lists them.
std::vector<bool> read_layer_types(const ForeignConfig& config, const Json& types, int64_t layers) {
  if (!types.is_array() || std::ssize(types.as_array()) != layers)
    config.refuse("layer_types", fmt::format("is no list of num_hidden_layers = {} names", layers));
  std::vector<bool> global;
  for (const Json& type : types.as_array()) {
    const std::string name = type.dump();
    const auto is = [&](const char* kind) { return name == Json(kind).dump(); };
    if (!is(kLocal) && !is(kGlobal))
      config.refuse("layer_types", fmt::format("holds {}; our model computes \"{}\" and \"{}\"",
                                               name, kLocal, kGlobal));
    global.push_back(is(kGlobal));
  }
  return global;
}

/// Whether these are the layers that `pattern` names; 0 names none.
bool explains(int64_t pattern, const std::vector<bool>& global) {
  for (int64_t layer = 0; layer < std::ssize(global); ++layer)
    if (global[static_cast<size_t>(layer)] != (pattern > 0 && (layer + 1) % pattern == 0))
      return false;
  return true;
}

/// Every so many-th layer attends all tokens. A list of all layers outranks the number, which Gemma
/// 2 does not have.
void read_pattern(const ForeignConfig& config, const Form& form, ShapeOptions& shape) {
  const char* const key = config.find("sliding_window_pattern") != nullptr
                              ? "sliding_window_pattern"
                              : "_sliding_window_pattern";
  shape.window_pattern = block_style(form.family).local_rope
                             ? config.integer(key, form.pattern, "model.shape.window_pattern")
                             : form.pattern;
  if (const Json* types = config.find("layer_types")) {
    const std::vector<bool> global = read_layer_types(config, *types, shape.layers);
    const auto first = std::ranges::find(global, true);
    if (!explains(shape.window_pattern, global))
      shape.window_pattern = first == global.end() ? 0 : first - global.begin() + 1;
    if (!explains(shape.window_pattern, global))
      config.refuse("layer_types",
                    fmt::format("is no pattern that repeats; the nearest that our model computes "
                                "has \"{}\" in every {}th layer",
                                kGlobal, shape.window_pattern));
  }
  if (shape.window_pattern == 1) shape.window = shape.window_pattern = 0;  // all attend all
  if (shape.window_pattern > shape.layers && shape.window_pattern != form.pattern)
    shape.window_pattern = 0;  // no layer is as far
}

/// A soft cap: absent, its default; null, there is none.
double read_cap(const ForeignConfig& config, const Json& json, const char* key, double absent,
                const char* ours) {
  if (json.find(key) == nullptr) return absent;
  return config.find(key) == nullptr ? 0.0 : config.positive(key, absent, ours);
}

/// Members of Gemma 2 and 3.
void read_gemma(const ForeignConfig& config, const Json& json, const Form& form,
                ShapeOptions& shape) {
  const bool caps = block_style(form.family).score_cap;
  shape.score_cap = read_cap(config, json, "attn_logit_softcapping", caps ? kScoreCap : 0.0,
                             "model.shape.score_cap");
  shape.logit_cap = read_cap(config, json, "final_logit_softcapping", caps ? kLogitCap : 0.0,
                             "model.shape.logit_cap");
  if (shape.score_cap > 0.0 && !caps)
    config.refuse("attn_logit_softcapping",
                  fmt::format("is {}; our {} computes null only, as transformers' does",
                              shape.score_cap, form.title));
  config.require_flag("use_bidirectional_attention", false);
  shape.query_scalar =
      config.positive("query_pre_attn_scalar", kGemmaScalar, "model.shape.query_scalar");
  if (const Json* window = json.find("sliding_window"); window != nullptr && window->is_null())
    config.refuse("sliding_window", "is null, not a size");
  read_pattern(config, form, shape);
}

/// Whole numbers without a point, as the published files have them.
Json shortest(double value) {
  const bool whole = std::abs(value) < 1e15 && std::floor(value) == value;
  return whole ? Json(static_cast<int64_t>(value)) : Json(value);
}

void add_gemma_members(const ShapeOptions& shape, const BlockStyle& style, Json& config) {
  std::vector<std::string> types;
  for (int64_t layer = 0; layer < shape.layers; ++layer)
    types.emplace_back(shape.has_window(layer) ? kLocal : kGlobal);
  const int64_t none = shape.window > 0 ? shape.layers + 1 : 1;  // no layer attends all, or each
  config["layer_types"] = types;
  config["sliding_window"] = shape.window > 0 ? shape.window : shape.context;
  if (style.local_rope)
    config["sliding_window_pattern"] = shape.window_pattern > 0 ? shape.window_pattern : none;
  if (style.local_rope) config["rope_local_base_freq"] = shape.rope.local_theta;
  config["query_pre_attn_scalar"] = shortest(
      shape.query_scalar > 0.0 ? shape.query_scalar : static_cast<double>(shape.head_elements()));
  const auto cap = [](double value) { return value > 0.0 ? Json(value) : Json(); };
  config["attn_logit_softcapping"] = cap(shape.score_cap);
  config["final_logit_softcapping"] = cap(shape.logit_cap);
  config["attention_bias"] = false;
}

/// Tensors of Gemma 3 beside those of its text part.
bool sees_pictures(const std::string& name) {
  const std::string_view rest =
      std::string_view(name).substr(name.starts_with("model.") ? std::size("model.") - 1 : 0);
  return rest.starts_with("vision_tower.") || rest.starts_with("multi_modal_projector.");
}

/// Members that only some of the families have.
void add_own_members(const ShapeOptions& shape, const BlockStyle& style, Json& config) {
  if (style.alternates) return add_gemma_members(shape, style, config);
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
  std::string model_type() const override { return form_.type; }
  std::string prefix() const override { return "model."; }
  std::string embedding() const override { return "embed_tokens.weight"; }
  bool is_ignored(const std::string& name) const override {
    return name.ends_with(".rotary_emb.inv_freq") || (style_.local_rope && sees_pictures(name));
  }
  int64_t vocabulary_rows(const Json& config, const std::string& path) const override {
    const int64_t rows = ForeignFamily::vocabulary_rows(config, path);
    return rows == 0 ? form_.vocabulary : rows;
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
        const char* const theirs = name_of(layer, i, style_);
        if (theirs == nullptr) break;
        std::vector<int64_t> dims = parameter.dims;
        dims[0] = rows_of(model.options, layer, i, dims[0]);
        list.push_back({fmt::format("layers.{}.{}.{}", number, theirs, kind), dims});
      }
  ensure(!list.empty(), "not a parameter of the family");
  return list;
}

Json RotaryFamily::config(const ShapeOptions& shape, Dtype dtype, const Tokenizer& tokenizer,
                          std::vector<std::string>& notes) const {
  const auto end = tokenizer.end_of_document();
  Json scaling;
  if (shape.rope.factor != 1.0 && shape.rope.original_context == 1)
    scaling = Json::object({{"rope_type", "linear"}, {"factor", shape.rope.factor}});
  else if (shape.rope.factor != 1.0)
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
                    {"model_type", form_.type},
                    {"vocab_size", std::max(shape.vocabulary, tokenizer.vocabulary_size())},
                    {"max_position_embeddings", shape.context},
                    {"hidden_size", shape.width},
                    {"intermediate_size", shape.ffn_width},
                    {"num_hidden_layers", shape.layers},
                    {"num_attention_heads", shape.heads},
                    {"num_key_value_heads", shape.kv_heads},
                    {"head_dim", shape.head_elements()},
                    {form_.activation, form_.function},
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
  const Json* activation = config.find(form_.activation);
  if (activation != nullptr && activation->dump() != Json(form_.function).dump())
    config.refuse(form_.activation, fmt::format("is {}; our model computes \"{}\"",
                                                activation->dump(), form_.function));
  ShapeOptions shape;
  shape.layers = config.integer("num_hidden_layers", form_.layers, "model.shape.layers");
  shape.width = config.integer("hidden_size", form_.width, "model.shape.width");
  read_heads(config, form_, shape);
  shape.ffn_width = config.integer("intermediate_size", form_.ffn_width, "model.shape.ffn_width");
  shape.context = config.integer("max_position_embeddings", form_.context, "model.shape.context");
  shape.bias = read_biases(config, style_.biases);
  shape.window = read_window(config, json, style_.windows);
  if (style_.alternates) read_gemma(config, json, form_, shape);
  shape.tied_head = config.flag("tie_word_embeddings", form_.tied_head);
  shape.norm_eps = config.number("rms_norm_eps", form_.norm_eps, "model.shape.norm_eps");
  shape.rope = read_rope(config, path, form_);
  shape.dropout = config.number("attention_dropout", 0.0, "model.shape.dropout");
  if (shape.dropout > 0.0 && style_.norm_behind)
    config.refuse("attention_dropout",
                  fmt::format("is {}; our {} drops nothing", shape.dropout, form_.title));
  require_whole_heads(config);
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
