// The GPT-2 family: which parameters its blocks have, in which order, with which initial values.
#include <fmt/format.h>

#include <cmath>

#include "strait/base/errors.h"
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
              const ShapeOptions& options) {
  parameters.push_back(vector(name + ".weight", options.width, Initial::kOnes));
  if (options.bias) parameters.push_back(vector(name + ".bias", options.width, Initial::kZeros));
}

/// Widths of a linear layer's output and input.
struct LinearSize {
  int64_t out = 0, in = 0;
};

void add_linear(std::vector<ParameterShape>& parameters, const std::string& name, LinearSize size,
                double deviation, bool bias) {
  parameters.push_back(matrix(name + ".weight", size.out, size.in, deviation));
  if (bias) parameters.push_back(vector(name + ".bias", size.out, Initial::kZeros));
}

UnitShape transformer_unit(const std::string& name, const ShapeOptions& options) {
  const int64_t width = options.width;
  const int64_t ffn = options.ffn_width;
  const double residual = kInitialDeviation / std::sqrt(2.0 * static_cast<double>(options.layers));
  std::vector<ParameterShape> parameters;
  add_norm(parameters, name + ".attention_norm", options);
  add_linear(parameters, name + ".attention.qkv", {3 * width, width}, kInitialDeviation,
             options.bias);
  add_linear(parameters, name + ".attention.output", {width, width}, residual, options.bias);
  add_norm(parameters, name + ".mlp_norm", options);
  add_linear(parameters, name + ".mlp.up", {ffn, width}, kInitialDeviation, options.bias);
  add_linear(parameters, name + ".mlp.down", {width, ffn}, residual, options.bias);
  return make_unit(name, parameters);
}

UnitShape embedding_unit(const ShapeOptions& options, int64_t vocabulary) {
  std::vector<ParameterShape> parameters = {
      matrix("embedding.token.weight", vocabulary, options.width, kInitialDeviation),
      matrix("embedding.position.weight", options.context, options.width, kInitialDeviation)};
  if (options.tied_head) add_norm(parameters, "head.norm", options);
  return make_unit("embedding", parameters);
}

UnitShape head_unit(const ShapeOptions& options, int64_t vocabulary) {
  std::vector<ParameterShape> parameters = {
      matrix("head.weight", vocabulary, options.width, kInitialDeviation)};
  add_norm(parameters, "head.norm", options);
  return make_unit("head", parameters);
}

std::string sizes_signature(const char* kind, const ShapeOptions& options) {
  return fmt::format("{} width={} ffn_width={} heads={} bias={} dropout={}", kind, options.width,
                     options.ffn_width, options.heads, options.bias, options.dropout);
}

[[noreturn]] void refuse(const char* key, const std::string& message) {
  ErrorPlace place;
  place.key = std::string("model.shape.") + key;
  throw UserError(fmt::format("model.shape.{}: {}", key, message), place);
}

void require_positive(const char* key, int64_t value) {
  if (value < 1) refuse(key, fmt::format("{} is not a size; the least is 1", value));
}

}  // namespace

void validate_shape(const ShapeOptions& options, int64_t vocabulary, const std::string& family) {
  if (family != "gpt2") {
    ErrorPlace place;
    place.key = "model.family";
    throw UserError(fmt::format("model.family: \"{}\" is not known; nearest: \"gpt2\"", family),
                    place);
  }
  require_positive("layers", options.layers);
  require_positive("heads", options.heads);
  require_positive("width", options.width);
  require_positive("ffn_width", options.ffn_width);
  require_positive("context", options.context);
  if (options.kv_heads != options.heads) {
    refuse("kv_heads",
           fmt::format("{} differs from heads = {}; family gpt2 has one key/value head per "
                       "head: write kv_heads = {}",
                       options.kv_heads, options.heads, options.heads));
  }
  if (options.width % options.heads != 0) {
    const int64_t per_head = (options.width + options.heads - 1) / options.heads;
    refuse("width", fmt::format("{} is not a multiple of heads = {}; nearest above: {}",
                                options.width, options.heads, per_head * options.heads));
  }
  if (!(options.dropout >= 0.0 && options.dropout < 1.0)) {
    refuse("dropout", fmt::format("{} is not in [0, 1)", options.dropout));
  }
  if (vocabulary < 1)
    throw UserError(fmt::format("a vocabulary of {} tokens has no token", vocabulary));
}

ModelShape gpt2_shape(const ShapeOptions& options, int64_t vocabulary) {
  validate_shape(options, vocabulary);
  ModelShape model;
  model.family = "gpt2";
  model.options = options;
  model.vocabulary = vocabulary;
  model.units.push_back(embedding_unit(options, vocabulary));
  model.blocks.push_back({"embedding",
                          BlockKind::kEmbedding,
                          0,
                          sizes_signature("embedding", options),
                          {{"embedding"}}});
  const std::string signature = sizes_signature("transformer", options);
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const std::string name = fmt::format("blocks.{}", layer);
    model.units.push_back(transformer_unit(name, options));
    model.blocks.push_back({name,
                            BlockKind::kTransformer,
                            layer + 1,
                            signature,
                            {{"norm+qkv"}, {"attention+output"}, {"norm+up"}, {"down"}}});
  }
  int64_t head = 0;
  if (!options.tied_head) {
    head = static_cast<int64_t>(model.units.size());
    model.units.push_back(head_unit(options, vocabulary));
  }
  model.blocks.push_back(
      {"head", BlockKind::kHead, head, sizes_signature("head", options), {{"head"}}});
  return model;
}

}  // namespace strait
