// Decoder-only transformers, GPT-2 and Llama: which parameters their blocks have, in which order,
// with which initial values.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "strait/base/errors.h"
#include "strait/shape/block_layout.h"
#include "strait/shape/shape.h"

namespace strait {
namespace {

constexpr double kInitialDeviation = 0.02;

ParameterShape matrix(std::string name, int64_t out, int64_t in, double deviation) {
  return {std::move(name), {out, in}, 0, true, Initial::kNormal, deviation};
}

ParameterShape vector(std::string name, int64_t size, Initial initial) {
  return {std::move(name), {size}, 0, false, initial, 0.0};
}

/// Assigns offsets: decayed parameters first, each group in the order given.
UnitShape make_unit(std::string name, const std::vector<ParameterShape>& parameters) {
  UnitShape unit;
  unit.name = std::move(name);
  for (const bool decay : {true, false}) {
    const int64_t begin = unit.elements;
    for (const ParameterShape& given : parameters) {
      if (given.weight_decay != decay) continue;
      ParameterShape& placed = unit.parameters.emplace_back(given);
      placed.offset = unit.elements;
      unit.elements += placed.elements();
    }
    if (unit.elements > begin) unit.sections.push_back({begin, unit.elements, decay});
  }
  return unit;
}

void add_norm(std::vector<ParameterShape>& parameters, const std::string& name,
              const ModelShape& model) {
  const int64_t width = model.options.width;
  parameters.push_back(vector(name + ".weight", width, Initial::kOnes));
  if (model.options.bias && !model.style.rms_norm)
    parameters.push_back(vector(name + ".bias", width, Initial::kZeros));
}

/// A linear layer: widths of its output and input, and how its weight [out, in] is cut over x.
struct LinearSize {
  int64_t out = 0, in = 0;
  AxisSplit split;
  double deviation = kInitialDeviation;
};

/// A bias goes with the outputs: cut like the weight's rows, shared where the columns are cut.
void add_linear(std::vector<ParameterShape>& parameters, const std::string& name,
                const LinearSize& size, bool bias) {
  parameters.push_back(matrix(name + ".weight", size.out, size.in, size.deviation));
  parameters.back().split.x = size.split;
  if (!bias) return;
  parameters.push_back(vector(name + ".bias", size.out, Initial::kZeros));
  if (size.split.dim == 0) parameters.back().split.x = size.split;
}

UnitShape transformer_unit(const std::string& name, const ModelShape& model) {
  const BlockExtent size = block_extent(model, 1, 1, Dtype::kFloat32);
  const int64_t width = size.width;
  const bool bias = model.options.bias;
  const double residual =
      kInitialDeviation / std::sqrt(2.0 * static_cast<double>(model.options.layers));
  const AxisSplit by_heads{0, {width, size.kv_width(), size.kv_width()}};
  const AxisSplit by_channels{0, std::vector<int64_t>(size.style.gated ? 2 : 1, size.ffn_width)};
  std::vector<ParameterShape> parameters;
  add_norm(parameters, name + ".attention_norm", model);
  add_linear(parameters, name + ".attention.qkv", {size.qkv_width(), width, by_heads}, bias);
  add_linear(parameters, name + ".attention.output", {width, width, {1, {width}}, residual}, bias);
  add_norm(parameters, name + ".mlp_norm", model);
  add_linear(parameters, name + (size.style.gated ? ".mlp.gate_up" : ".mlp.up"),
             {size.up_width(), width, by_channels}, bias);
  add_linear(parameters, name + ".mlp.down",
             {width, size.ffn_width, {1, {size.ffn_width}}, residual}, bias);
  return make_unit(name, parameters);
}

UnitShape embedding_unit(const ModelShape& model) {
  const ShapeOptions& options = model.options;
  std::vector<ParameterShape> parameters = {
      matrix("embedding.token.weight", model.vocabulary, options.width, kInitialDeviation)};
  if (!model.style.rotary)
    parameters.push_back(
        matrix("embedding.position.weight", options.context, options.width, kInitialDeviation));
  if (options.tied_head) add_norm(parameters, "head.norm", model);
  return make_unit("embedding", parameters);
}

UnitShape head_unit(const ModelShape& model) {
  std::vector<ParameterShape> parameters = {
      matrix("head.weight", model.vocabulary, model.options.width, kInitialDeviation)};
  add_norm(parameters, "head.norm", model);
  return make_unit("head", parameters);
}

std::string sizes_signature(const char* kind, const ModelShape& model) {
  const ShapeOptions& options = model.options;
  std::string text =
      fmt::format("{} width={} ffn_width={} heads={} bias={} dropout={}", kind, options.width,
                  options.ffn_width, options.heads, options.bias, options.dropout);
  if (model.family != "gpt2")
    text += fmt::format(" family={} kv_heads={}", model.family, options.kv_heads);
  return text;
}

[[noreturn]] void refuse(const std::string& key, const std::string& message) {
  ErrorPlace place;
  place.key = "model." + key;
  throw UserError(fmt::format("model.{}: {}", key, message), place);
}

void require_positive(const char* key, int64_t value) {
  if (value < 1)
    refuse(std::string("shape.") + key, fmt::format("{} is not a size; the least is 1", value));
}

void check_kv_heads(const ShapeOptions& options, const std::string& family) {
  require_positive("kv_heads", options.kv_heads);
  if (family == "gpt2" && options.kv_heads != options.heads) {
    refuse("shape.kv_heads",
           fmt::format("{} differs from heads = {}; family gpt2 has one key/value head per "
                       "head: write kv_heads = {}",
                       options.kv_heads, options.heads, options.heads));
  }
  if (options.heads % options.kv_heads != 0) {
    int64_t below = options.kv_heads;
    while (options.heads % below != 0) --below;
    refuse("shape.kv_heads", fmt::format("{} does not divide heads = {}; nearest below: {}",
                                         options.kv_heads, options.heads, below));
  }
}

void check_rope(const ShapeOptions& options) {
  const int64_t head_width = options.width / options.heads;
  if (head_width % 2 != 0)
    refuse("shape.width",
           fmt::format("{} / {} heads = {}: RoPE turns pairs, so the width of a head must be even; "
                       "nearest above: {}",
                       options.width, options.heads, head_width, (head_width + 1) * options.heads));
  const RopeOptions& rope = options.rope;
  if (!(rope.theta > 0.0)) refuse("rope.theta", fmt::format("{} is not above 0", rope.theta));
  if (!(rope.factor >= 1.0)) refuse("rope.factor", fmt::format("{} is below 1", rope.factor));
  if (!(rope.low_frequency_factor > 0.0 &&
        rope.high_frequency_factor > rope.low_frequency_factor)) {
    refuse("rope.high_frequency_factor",
           fmt::format("{} is not above low_frequency_factor = {}, which is above 0",
                       rope.high_frequency_factor, rope.low_frequency_factor));
  }
  if (rope.original_context < 1)
    refuse("rope.original_context",
           fmt::format("{} is not a size; the least is 1", rope.original_context));
}

/// Chain of a family: embedding, transformer blocks, head.
ModelShape build(const std::string& family, const ShapeOptions& options, int64_t vocabulary) {
  validate_shape(options, vocabulary, family);
  ModelShape model;
  model.family = family;
  model.style = block_style(family);
  model.options = options;
  model.vocabulary = vocabulary;
  model.units.push_back(embedding_unit(model));
  model.blocks.push_back({"embedding",
                          BlockKind::kEmbedding,
                          0,
                          sizes_signature("embedding", model),
                          {{"embedding"}}});
  const std::string signature = sizes_signature("transformer", model);
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const std::string name = fmt::format("blocks.{}", layer);
    model.units.push_back(transformer_unit(name, model));
    model.blocks.push_back({name,
                            BlockKind::kTransformer,
                            layer + 1,
                            signature,
                            {{"norm+qkv"}, {"attention+output"}, {"norm+up"}, {"down"}}});
  }
  int64_t head = 0;
  if (!options.tied_head) {
    head = static_cast<int64_t>(model.units.size());
    model.units.push_back(head_unit(model));
  }
  model.blocks.push_back(
      {"head", BlockKind::kHead, head, sizes_signature("head", model), {{"head"}}});
  return model;
}

}  // namespace

BlockStyle block_style(const std::string& family) {
  if (family == "gpt2") return {};
  if (family == "llama") return {.rms_norm = true, .rotary = true, .gated = true};
  refuse("family", fmt::format("\"{}\" is not known; nearest: \"{}\"", family,
                               nearest_choice(family, std::array{"gpt2", "llama"})));
}

void validate_shape(const ShapeOptions& options, int64_t vocabulary, const std::string& family) {
  const BlockStyle style = block_style(family);
  require_positive("layers", options.layers);
  require_positive("heads", options.heads);
  require_positive("width", options.width);
  require_positive("ffn_width", options.ffn_width);
  require_positive("context", options.context);
  check_kv_heads(options, family);
  if (options.width % options.heads != 0) {
    const int64_t per_head = (options.width + options.heads - 1) / options.heads;
    refuse("shape.width", fmt::format("{} is not a multiple of heads = {}; nearest above: {}",
                                      options.width, options.heads, per_head * options.heads));
  }
  if (style.rotary) check_rope(options);
  if (!(options.dropout >= 0.0 && options.dropout < 1.0)) {
    refuse("shape.dropout", fmt::format("{} is not in [0, 1)", options.dropout));
  }
  if (!(options.norm_eps > 0.0))
    refuse("shape.norm_eps", fmt::format("{} is not above 0", options.norm_eps));
  if (vocabulary < 1)
    throw UserError(fmt::format("a vocabulary of {} tokens has no token", vocabulary));
}

ModelShape model_shape(const ModelOptions& model, int64_t vocabulary) {
  return build(model.family, model.shape, vocabulary);
}

ModelShape gpt2_shape(const ShapeOptions& options, int64_t vocabulary) {
  return build("gpt2", options, vocabulary);
}

ModelShape llama_shape(const ShapeOptions& options, int64_t vocabulary) {
  return build("llama", options, vocabulary);
}

}  // namespace strait
