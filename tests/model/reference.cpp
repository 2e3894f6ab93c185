#include "tests/model/reference.h"

#include <cmath>
#include <cstring>

#include "strait/base/random.h"

namespace strait::model {
namespace {

at::Tensor get(const Parameters& parameters, const std::string& name) {
  const auto found = parameters.find(name);
  return found == parameters.end() ? at::Tensor() : found->second;
}

at::Tensor linear(const Parameters& parameters, const std::string& name, const at::Tensor& x) {
  const at::Tensor y = at::matmul(x, get(parameters, name + ".weight").t());
  const at::Tensor bias = get(parameters, name + ".bias");
  return bias.defined() ? y + bias : y;
}

bool is_gemma(const ReferenceInput& input) {
  return input.family == "gemma2" || input.family == "gemma3";
}

at::Tensor soft_cap(const at::Tensor& x, double cap) {
  return cap > 0.0 ? cap * at::tanh(x / cap) : x;
}

at::Tensor norm(const ReferenceInput& input, const Parameters& parameters, const std::string& name,
                const at::Tensor& x) {
  const double eps = input.options.norm_eps;
  const at::Tensor weight = get(parameters, name + ".weight");
  if (is_gemma(input)) return x / at::sqrt(x.pow(2).mean(-1, true) + eps) * (1.0 + weight);
  if (input.family != "gpt2") return x / at::sqrt(x.pow(2).mean(-1, true) + eps) * weight;
  const at::Tensor mean = x.mean(-1, true);
  const at::Tensor variance = (x - mean).pow(2).mean(-1, true);
  const at::Tensor y = (x - mean) / at::sqrt(variance + eps) * weight;
  const at::Tensor bias = get(parameters, name + ".bias");
  return bias.defined() ? y + bias : y;
}

/// One factor of the mask of `stream` at `element`: 32 bits of a shared 64-bit draw per two
/// elements.
double mask_factor(const RandomStream& stream, uint64_t element, double rate) {
  const uint64_t draw = stream.bits(element / 2);
  const double uniform = static_cast<double>(element % 2 == 0 ? (draw & 0xffffffff) : (draw >> 32));
  return uniform < std::round(rate * 4294967296.0) ? 0.0 : 1.0 / (1.0 - rate);
}

at::Tensor dropout(const ReferenceInput& input, const char* purpose, int64_t block,
                   const at::Tensor& x) {
  const double rate = input.training ? input.options.dropout : 0.0;
  if (rate == 0.0) return x;
  const at::Tensor mask = at::empty(x.sizes(), at::kDouble);
  const int64_t per_sequence = x.numel() / input.batch;
  for (int64_t b = 0; b < input.batch; ++b) {
    const RandomStream stream(input.seed, purpose, static_cast<uint64_t>(block),
                              static_cast<uint64_t>(input.sequences[static_cast<size_t>(b)]));
    double* to = mask.data_ptr<double>() + b * per_sequence;
    for (int64_t e = 0; e < per_sequence; ++e)
      to[e] = mask_factor(stream, static_cast<uint64_t>(e), rate);
  }
  return x * mask;
}

/// [B, H, T, T]: the mask of attention probabilities, element (head << 40) + (query << 20) + key.
at::Tensor attention_dropout(const ReferenceInput& input, int64_t block,
                             const at::Tensor& probabilities) {
  const double rate = input.training ? input.options.dropout : 0.0;
  if (rate == 0.0) return probabilities;
  const at::Tensor mask = at::empty(probabilities.sizes(), at::kDouble);
  double* to = mask.data_ptr<double>();
  for (int64_t b = 0; b < input.batch; ++b) {
    const RandomStream stream(input.seed, "dropout.attention", static_cast<uint64_t>(block),
                              static_cast<uint64_t>(input.sequences[static_cast<size_t>(b)]));
    for (int64_t h = 0; h < input.options.heads; ++h) {
      for (int64_t i = 0; i < input.tokens; ++i) {
        for (int64_t j = 0; j < input.tokens; ++j) {
          const uint64_t element = (static_cast<uint64_t>(h) << 40) +
                                   (static_cast<uint64_t>(i) << 20) + static_cast<uint64_t>(j);
          *to++ = mask_factor(stream, element, rate);
        }
      }
    }
  }
  return probabilities * mask;
}

int64_t head_width_of(const ReferenceInput& input) {
  const int64_t given = input.options.head_width;
  return given > 0 ? given : input.options.width / input.options.heads;
}

/// OLMo 2 normalizes all queries or keys of a token together: columns of qkv.
at::Tensor normalized_columns(const ReferenceInput& input, const Parameters& parameters,
                              const std::string& attention, const at::Tensor& qkv) {
  if (input.family != "olmo2") return qkv;
  const int64_t queries = input.options.heads * head_width_of(input),
                keys = input.options.kv_heads * head_width_of(input);
  return at::cat(
      {norm(input, parameters, attention + ".query_norm", qkv.slice(2, 0, queries)),
       norm(input, parameters, attention + ".key_norm", qkv.slice(2, queries, queries + keys)),
       qkv.slice(2, queries + keys)},
      2);
}

/// Gemma: of `window_pattern` blocks the last one attends all tokens.
bool is_global(const ReferenceInput& input, int64_t block) {
  const int64_t pattern = input.options.window_pattern;
  return input.options.window == 0 || (pattern > 0 && block % pattern == 0);
}

/// Qwen 3 and Gemma 3 normalize each head, [B, H, T, D].
at::Tensor normalized_heads(const ReferenceInput& input, const Parameters& parameters,
                            const std::string& name, const at::Tensor& heads) {
  const bool apart = input.family == "qwen3" || input.family == "gemma3";
  return apart ? norm(input, parameters, name, heads) : heads;
}

/// Queries, keys or values of every head, [B, H, T, D]: `count` heads from column `first` of qkv.
at::Tensor heads_of(const ReferenceInput& input, const at::Tensor& qkv, int64_t first,
                    int64_t count) {
  const int64_t head_width = head_width_of(input);
  const at::Tensor part = qkv.slice(2, first, first + count * head_width)
                              .reshape({input.batch, input.tokens, count, head_width})
                              .transpose(1, 2);
  return at::repeat_interleave(part, input.options.heads / count, 1);
}

at::Tensor tanh_gelu(const at::Tensor& x) {
  return 0.5 * x * (1.0 + at::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x.pow(3))));
}

at::Tensor activation(const ReferenceInput& input, const at::Tensor& up) {
  if (input.family == "gpt2") return tanh_gelu(up);
  const std::vector<at::Tensor> parts = at::chunk(up, 2, -1);
  if (is_gemma(input)) return tanh_gelu(parts[0]) * parts[1];
  return parts[0] * at::sigmoid(parts[0]) * parts[1];
}

/// [B, 1, T, T]: true where query i attends key j.
at::Tensor attended(const ReferenceInput& input, int64_t block) {
  const at::Tensor allowed = at::zeros({input.batch, 1, input.tokens, input.tokens}, at::kBool);
  bool* to = allowed.data_ptr<bool>();
  for (int64_t row = 0; row < input.batch * input.tokens; ++row) {
    const int64_t start = input.starts.empty() ? 0 : input.starts[static_cast<size_t>(row)];
    const int64_t query = row % input.tokens;
    const int64_t window = is_global(input, block) ? 0 : input.options.window;
    for (int64_t j = 0; j < input.tokens; ++j)
      *to++ = j >= start && j <= query && (window == 0 || query - j < window);
  }
  return allowed;
}

}  // namespace

Parameters reference_parameters(const ModelShape& shape,
                                const std::vector<std::vector<double>>& units) {
  Parameters parameters;
  for (size_t unit = 0; unit < shape.units.size(); ++unit) {
    for (const ParameterShape& parameter : shape.units[unit].parameters) {
      const at::Tensor leaf = at::empty(parameter.dims, at::kDouble);
      std::memcpy(leaf.data_ptr(), units[unit].data() + parameter.offset,
                  static_cast<size_t>(parameter.elements()) * sizeof(double));
      parameters[parameter.name] = leaf.requires_grad_();
    }
  }
  return parameters;
}

at::Tensor reference_rope(const RopeOptions& rope, const at::Tensor& x) {
  const int64_t tokens = x.size(2), half = x.size(3) / 2;
  const at::Tensor angles = at::empty({tokens, half}, at::kDouble);
  for (int64_t i = 0; i < half; ++i) {
    double frequency = std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(half));
    const double wave = 2.0 * M_PI / frequency;
    const auto original = static_cast<double>(rope.original_context);
    const double longest = original / rope.low_frequency_factor,
                 shortest = original / rope.high_frequency_factor;
    if (wave > longest) {
      frequency /= rope.factor;
    } else if (wave > shortest) {
      const double smooth = (original / wave - rope.low_frequency_factor) /
                            (rope.high_frequency_factor - rope.low_frequency_factor);
      frequency = (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
    }
    for (int64_t t = 0; t < tokens; ++t) angles[t][i] = static_cast<double>(t) * frequency;
  }
  const at::Tensor pairs = at::complex(x.slice(3, 0, half), x.slice(3, half, 2 * half));
  const at::Tensor turned = pairs * at::polar(at::ones_like(angles), angles);
  return at::cat({at::real(turned), at::imag(turned)}, 3);
}

at::Tensor reference_embedding(const ReferenceInput& input, const Parameters& parameters) {
  const at::Tensor tokens =
      at::tensor(input.inputs, at::kInt).to(at::kLong).reshape({input.batch, input.tokens});
  at::Tensor x = at::embedding(get(parameters, "embedding.token.weight"), tokens);
  if (is_gemma(input)) x = x * std::sqrt(static_cast<double>(input.options.width));
  if (input.family == "gpt2") {
    // Counted from the first token of each document.
    at::Tensor positions = at::arange(input.tokens, at::kLong).expand({input.batch, input.tokens});
    if (!input.starts.empty())
      positions = positions - at::tensor(input.starts, at::kInt).view_as(positions);
    x = x + at::embedding(get(parameters, "embedding.position.weight"), positions);
  }
  return dropout(input, "dropout.embedding", 0, x);
}

at::Tensor reference_transformer(const ReferenceInput& input, const Parameters& parameters,
                                 int64_t block, const at::Tensor& x) {
  const std::string name = "blocks." + std::to_string(block - 1);
  const bool llama = input.family != "gpt2", gemma = is_gemma(input);
  const bool before_too = input.family != "olmo2", behind = gemma || input.family == "olmo2";
  const int64_t heads = input.options.heads, kv_heads = input.options.kv_heads,
                head_width = head_width_of(input), width = heads * head_width;
  const auto before = [&](const char* which, const at::Tensor& y) {
    return before_too ? norm(input, parameters, name + which, y) : y;
  };
  const auto after = [&](const char* which, const at::Tensor& y) {
    return behind ? norm(input, parameters, name + which, y) : y;
  };
  const at::Tensor qkv =
      normalized_columns(input, parameters, name + ".attention",
                         linear(parameters, name + ".attention.qkv", before(".attention_norm", x)));
  at::Tensor queries = heads_of(input, qkv, 0, heads), keys = heads_of(input, qkv, width, kv_heads);
  const at::Tensor values = heads_of(input, qkv, width + kv_heads * head_width, kv_heads);
  queries = normalized_heads(input, parameters, name + ".attention.query_norm", queries);
  keys = normalized_heads(input, parameters, name + ".attention.key_norm", keys);
  RopeOptions rope = input.options.rope;
  if (input.family == "gemma3" && !is_global(input, block)) {
    rope.theta = rope.local_theta;
    rope.factor = 1.0;
  }
  if (llama) {
    queries = reference_rope(rope, queries);
    keys = reference_rope(rope, keys);
  }
  const double squared = gemma && input.options.query_scalar > 0 ? input.options.query_scalar
                                                                 : static_cast<double>(head_width);
  at::Tensor scores = at::matmul(queries, keys.transpose(2, 3)) / std::sqrt(squared);
  scores = soft_cap(scores, input.options.score_cap);
  scores = scores.masked_fill(attended(input, block).logical_not(), -INFINITY);
  const at::Tensor probabilities = attention_dropout(input, block, at::softmax(scores, -1));
  const at::Tensor attention =
      at::matmul(probabilities, values).transpose(1, 2).reshape({input.batch, input.tokens, width});
  const at::Tensor middle =
      x + dropout(input, "dropout.attention_output", block,
                  after(".attention_post_norm",
                        linear(parameters, name + ".attention.output", attention)));
  const at::Tensor up =
      linear(parameters, name + (llama ? ".mlp.gate_up" : ".mlp.up"), before(".mlp_norm", middle));
  return middle + dropout(input, "dropout.mlp_output", block,
                          after(".mlp_post_norm",
                                linear(parameters, name + ".mlp.down", activation(input, up))));
}

at::Tensor reference_logits(const ReferenceInput& input, const Parameters& parameters,
                            const at::Tensor& x) {
  const at::Tensor weight =
      get(parameters, input.options.tied_head ? "embedding.token.weight" : "head.weight");
  return soft_cap(at::matmul(norm(input, parameters, "head.norm", x), weight.t()),
                  input.options.logit_cap);
}

at::Tensor reference_loss(const ReferenceInput& input, const Parameters& parameters,
                          const at::Tensor& x) {
  const at::Tensor logits = reference_logits(input, parameters, x).reshape({-1, input.vocabulary});
  const at::Tensor log_probabilities = at::log_softmax(logits, -1);
  const at::Tensor targets = at::tensor(input.targets, at::kInt).to(at::kLong).unsqueeze(1);
  const at::Tensor chosen = at::gather(log_probabilities, 1, targets.clamp_min(0));
  return -(chosen * targets.ge(0)).sum();
}

at::Tensor reference_model_loss(const ReferenceInput& input, const Parameters& parameters) {
  at::Tensor x = reference_embedding(input, parameters);
  for (int64_t layer = 0; layer < input.options.layers; ++layer) {
    x = reference_transformer(input, parameters, layer + 1, x);
  }
  return reference_loss(input, parameters, x);
}

std::vector<double> flat_gradient(const UnitShape& unit, const Parameters& parameters) {
  std::vector<double> flat(static_cast<size_t>(unit.elements), 0.0);
  for (const ParameterShape& parameter : unit.parameters) {
    const at::Tensor gradient = parameters.at(parameter.name).grad();
    if (!gradient.defined()) continue;
    const at::Tensor dense = gradient.contiguous();
    std::memcpy(flat.data() + parameter.offset, dense.data_ptr(),
                static_cast<size_t>(parameter.elements()) * sizeof(double));
  }
  return flat;
}

}  // namespace strait::model
