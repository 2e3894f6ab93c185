#include "tests/convert/plain_decoder.h"

#include <cmath>
#include <random>

namespace strait::test {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

class PlainDecoder {
 public:
  explicit PlainDecoder(const std::string& folder)
      : config_(Json::parse(read_file(folder + "/config.json"), "config.json")),
        family_(config_.at("model_type").as_string()),
        heads_(size("num_attention_heads")),
        kv_heads_(size("num_key_value_heads")),
        head_(size("head_dim")) {
    for (const TensorFile::Tensor& tensor : TensorFile(folder + "/model.safetensors").tensors) {
      Row& values = weights_[tensor.name];
      for (size_t at = 0; at < tensor.data.size(); at += dtype_bytes(tensor.dtype))
        values.push_back(number(tensor, at));
    }
  }

  Rows logits(const std::vector<int32_t>& tokens) {
    const size_t width = size("hidden_size");
    Rows x;
    for (const int32_t token : tokens) {
      const Row& table = weights_.at("model.embed_tokens.weight");
      const auto first = table.begin() + token * static_cast<int64_t>(width);
      x.emplace_back(first, first + static_cast<int64_t>(width));
      for (double& value : x.back()) value *= gemma() ? std::sqrt(static_cast<double>(width)) : 1.0;
    }
    for (size_t layer = 0; layer < size("num_hidden_layers"); ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + ".";
      layer_ = layer;
      add(x, attention(name, x));
      for (Row& row : x) add(row, mlp(name, row));
    }
    const bool tied = config_.at("tie_word_embeddings").as_bool();
    for (Row& row : x) {
      row = linear(norm(row, "model.norm"), tied ? "model.embed_tokens" : "lm_head");
      for (double& logit : row) logit = capped(logit, "final_logit_softcapping");
    }
    return x;
  }

 private:
  bool gemma() const { return gemma3() || family_ == "gemma2"; }
  bool gemma3() const { return family_ == "gemma3_text"; }
  double capped(double value, const char* key) const {
    const Json* cap = config_.find(key);
    if (cap == nullptr || cap->is_null()) return value;
    return cap->as_number() * std::tanh(value / cap->as_number());
  }
  /// Whether the layer at hand attends all tokens: Gemma's list of types says it.
  bool global() const {
    return !gemma() || config_.at("layer_types").as_array()[layer_].as_string() == "full_attention";
  }
  size_t size(const char* key) const { return static_cast<size_t>(config_.at(key).as_integer()); }

  static double number(const TensorFile::Tensor& tensor, size_t at) {
    if (tensor.dtype == Dtype::kFloat64) {
      double value = 0;
      std::memcpy(&value, tensor.data.data() + at, sizeof value);
      return value;
    }
    float value = 0;
    std::memcpy(&value, tensor.data.data() + at, sizeof value);
    return value;
  }

  static void add(Row& to, const Row& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }
  static void add(Rows& to, const Rows& from) {
    for (size_t t = 0; t < to.size(); ++t) add(to[t], from[t]);
  }

  Row linear(const Row& x, const std::string& name) const {
    const Row& weight = weights_.at(name + ".weight");
    const auto bias = weights_.find(name + ".bias");
    Row y(weight.size() / x.size());
    for (size_t out = 0; out < y.size(); ++out) {
      for (size_t in = 0; in < x.size(); ++in) y[out] += weight[out * x.size() + in] * x[in];
      if (bias != weights_.end()) y[out] += bias->second[out];
    }
    return y;
  }

  Row norm(Row x, const std::string& name) const {
    double square = 0;
    for (const double value : x) square += value * value / static_cast<double>(x.size());
    const double scale = 1.0 / std::sqrt(square + config_.at("rms_norm_eps").as_number());
    const Row& weight = weights_.at(name + ".weight");
    for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * (weight[i] + (gemma() ? 1.0 : 0.0));
    return x;
  }

  Row head_of(const Row& x, size_t head) const {
    const auto first = x.begin() + static_cast<int64_t>(head * head_);
    return {first, first + static_cast<int64_t>(head_)};
  }

  Row rotated(Row x, size_t position) const {
    const size_t half = head_ / 2;
    const bool local = gemma3() && !global();
    const double theta = config_.at(local ? "rope_local_base_freq" : "rope_theta").as_number();
    const Json* scaling = config_.find("rope_scaling");
    const bool stretched = !local && scaling != nullptr && !scaling->is_null();  // "linear"
    const double factor = stretched ? scaling->at("factor").as_number() : 1.0;
    for (size_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(position) / factor *
          std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_));
      const double a = x[i], b = x[i + half];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
    return x;
  }

  /// Heads of the queries or keys of a token.
  Rows turned(const Row& x, const std::string& name, const char* which, size_t position) const {
    const std::string norm_name = name + "self_attn." + which + "_norm";
    const Row whole = family_ == "olmo2"
                          ? norm(linear(x, name + "self_attn." + which + "_proj"), norm_name)
                          : linear(x, name + "self_attn." + which + "_proj");
    Rows heads;
    for (size_t head = 0; head < whole.size() / head_; ++head) {
      const Row part = head_of(whole, head);
      const bool apart = gemma3() || family_ == "qwen3";
      heads.push_back(rotated(apart ? norm(part, norm_name) : part, position));
    }
    return heads;
  }

  size_t first_key(size_t query) const {
    const Json* window = config_.find("sliding_window");
    const bool windows = family_ == "mistral" || !global();
    if (!windows || window == nullptr || window->is_null()) return 0;
    const auto latest = static_cast<size_t>(window->as_integer());
    return query + 1 > latest ? query + 1 - latest : 0;
  }

  /// What one head mixes for the last token of `keys`.
  Row mixed(const Row& query, const std::vector<Rows>& keys, const Rows& values,
            size_t shared) const {
    Row out(head_);
    double sum = 0;
    for (size_t t = first_key(keys.size() - 1); t < keys.size(); ++t) {
      double score = 0;
      for (size_t i = 0; i < head_; ++i) score += query[i] * keys[t][shared][i];
      const double scalar =
          gemma() ? config_.at("query_pre_attn_scalar").as_number() : static_cast<double>(head_);
      const double share = std::exp(capped(score / std::sqrt(scalar), "attn_logit_softcapping"));
      const Row value = head_of(values[t], shared);
      for (size_t i = 0; i < head_; ++i) out[i] += share * value[i];
      sum += share;
    }
    for (double& value : out) value /= sum;
    return out;
  }

  Rows attention(const std::string& name, const Rows& x) const {
    std::vector<Rows> keys;
    Rows values, results;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row in = family_ == "olmo2" ? x[t] : norm(x[t], name + "input_layernorm");
      const Rows queries = turned(in, name, "q", t);
      keys.push_back(turned(in, name, "k", t));
      values.push_back(linear(in, name + "self_attn.v_proj"));
      Row all;
      for (size_t head = 0; head < heads_; ++head) {
        const Row one = mixed(queries[head], keys, values, head / (heads_ / kv_heads_));
        all.insert(all.end(), one.begin(), one.end());
      }
      results.push_back(linear(all, name + "self_attn.o_proj"));
      if (gemma() || family_ == "olmo2")
        results.back() = norm(results.back(), name + "post_attention_layernorm");
    }
    return results;
  }

  double activated(double x) const {
    if (!gemma()) return x / (1.0 + std::exp(-x));
    return x * 0.5 * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
  }

  Row mlp(const std::string& name, const Row& x) const {
    const Row in =
        family_ == "olmo2"
            ? x
            : norm(x, name + (gemma() ? "pre_feedforward_layernorm" : "post_attention_layernorm"));
    Row gate = linear(in, name + "mlp.gate_proj");
    const Row up = linear(in, name + "mlp.up_proj");
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = activated(gate[i]) * up[i];
    const Row out = linear(gate, name + "mlp.down_proj");
    return gemma() || family_ == "olmo2" ? norm(out, name + "post_feedforward_layernorm") : out;
  }

  Json config_;
  std::string family_;
  size_t heads_, kv_heads_, head_, layer_ = 0;
  std::map<std::string, Row> weights_;
};

/// Writes random tensors, large enough for each to matter.
class FolderMaker {
 public:
  /// Weights of norms are about `norms`.
  explicit FolderMaker(float norms) : norms_(norms) {}
  void add(const std::string& name, const std::vector<int64_t>& dims) {
    TensorFile::Tensor tensor{name, Dtype::kFloat32, dims, {}};
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    for (int64_t i = 0; i < count; ++i) {
      const float value =
          (name.find("norm") == std::string::npos ? 0.0f : norms_) + normal_(random_);
      const auto bytes = std::as_bytes(std::span(&value, 1));
      tensor.data.insert(tensor.data.end(), bytes.begin(), bytes.end());
    }
    tensors_.push_back(std::move(tensor));
  }
  void write(const std::string& path) const {
    std::vector<checkpoint::TensorView> views;
    for (const TensorFile::Tensor& tensor : tensors_)
      views.push_back({tensor.name, tensor.dtype, tensor.dims, tensor.data});
    checkpoint::write_safetensors(path, views, {{"format", "pt"}});
  }

 private:
  float norms_;
  std::mt19937 random_{1337};
  std::normal_distribution<float> normal_{0.0f, 0.3f};
  std::vector<TensorFile::Tensor> tensors_;
};

constexpr int64_t kWidth = 32, kHeads = 4, kKvHeads = 2, kInner = 44, kVocabulary = 300;

void add_layer(FolderMaker& maker, const std::string& family, int64_t head,
               const std::string& name) {
  const bool gemma = family.starts_with("gemma");
  const bool behind = family == "olmo2", apart = family == "gemma3" || family == "qwen3";
  const int64_t queries = kHeads * head, keys = kKvHeads * head;
  const auto vector = [&](const char* part, int64_t size) {
    maker.add(name + part + ".weight", {size});
  };
  vector(behind ? "post_feedforward_layernorm" : "input_layernorm", kWidth);
  vector("post_attention_layernorm", kWidth);
  if (gemma) vector("pre_feedforward_layernorm", kWidth);
  if (gemma) vector("post_feedforward_layernorm", kWidth);
  for (const auto& [part, rows] : {std::pair("q", queries), {"k", keys}, {"v", keys}}) {
    const std::string projection = name + "self_attn." + part + "_proj";
    maker.add(projection + ".weight", {rows, kWidth});
    if (family == "qwen2") maker.add(projection + ".bias", {rows});
  }
  if (apart || behind) vector("self_attn.q_norm", apart ? head : queries);
  if (apart || behind) vector("self_attn.k_norm", apart ? head : keys);
  maker.add(name + "self_attn.o_proj.weight", {kWidth, queries});
  maker.add(name + "mlp.gate_proj.weight", {kInner, kWidth});
  maker.add(name + "mlp.up_proj.weight", {kInner, kWidth});
  maker.add(name + "mlp.down_proj.weight", {kWidth, kInner});
}

}  // namespace

Logits plain_logits(const std::string& folder, const std::vector<int32_t>& tokens) {
  return {tokens, PlainDecoder(folder).logits(tokens)};
}

void make_folder(const std::string& family, const std::string& folder) {
  const bool smollm = family == "smollm", gemma = family.starts_with("gemma"),
             gemma3 = family == "gemma3";
  const bool tied = smollm || gemma, wide = gemma || family == "qwen3" || family == "mistral";
  const int64_t head = wide ? 12 : kWidth / kHeads, layers = gemma ? 4 : 2;
  copy_fixture(std::filesystem::path(folder).parent_path().string(),
               std::filesystem::path(folder).filename().string(), kLlamaFixture);
  Json config = Json::object(
      {{"model_type", smollm   ? "llama"
                      : gemma3 ? "gemma3_text"
                               : family},
       {"vocab_size", kVocabulary},
       {"max_position_embeddings", 20},
       {"hidden_size", kWidth},
       {"intermediate_size", kInner},
       {"num_hidden_layers", layers},
       {"num_attention_heads", kHeads},
       {"num_key_value_heads", kKvHeads},
       {"head_dim", head},
       {gemma ? "hidden_activation" : "hidden_act", gemma ? "gelu_pytorch_tanh" : "silu"},
       {"rms_norm_eps", 1e-5},
       {"rope_theta", 700.0},
       {"tie_word_embeddings", tied}});
  if (gemma || family == "mistral") config["sliding_window"] = 3;
  if (gemma) {  // the last one attends by the window
    const std::string local = "sliding_attention";
    config["layer_types"] = std::vector<std::string>{local, local, "full_attention", local};
    config["query_pre_attn_scalar"] = 20;
    config["rope_scaling"] = Json::object({{"rope_type", "linear"}, {"factor", 2.0}});
    config["attn_logit_softcapping"] = gemma3 ? Json() : Json(1.5);
    config["final_logit_softcapping"] = gemma3 ? Json() : Json(2.5);
  }
  if (gemma3) config["sliding_window_pattern"] = 3;
  if (gemma3) config["rope_local_base_freq"] = 30.0;
  write_file_atomically(folder + "/config.json", config.dump());
  FolderMaker maker(gemma ? 0.0f : 1.0f);
  maker.add("model.embed_tokens.weight", {kVocabulary, kWidth});
  for (int64_t layer = 0; layer < layers; ++layer)
    add_layer(maker, family, head, "model.layers." + std::to_string(layer) + ".");
  maker.add("model.norm.weight", {kWidth});
  if (!tied) maker.add("lm_head.weight", {kVocabulary, kWidth});
  maker.write(folder + "/model.safetensors");
}

}  // namespace strait::test
