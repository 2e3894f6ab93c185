// Decoder-only transformers: which parameters their blocks have, in which order, with which initial
// values. families.cpp says what differs between families.
#include <fmt/format.h>

#include <cmath>

#include "strait/base/errors.h"
#include "strait/shape/block_layout.h"
#include "strait/shape/modules.h"
#include "strait/shape/shape.h"
#include "strait/shape/unet.h"
#include "strait/shape/unit.h"

namespace strait {
namespace {

constexpr double kInitialDeviation = 0.02;

ParameterShape matrix(std::string name, int64_t out, int64_t in, double deviation) {
  return {std::move(name), {out, in}, 0, true, Initial::kNormal, deviation};
}

ParameterShape vector(std::string name, int64_t size, Initial initial) {
  return {std::move(name), {size}, 0, false, initial, 0.0};
}

/// Of the weight of a norm, so that it changes nothing.
Initial neutral(const BlockStyle& style) {
  return style.norm_from_one ? Initial::kZeros : Initial::kOnes;
}

void add_norm(std::vector<ParameterShape>& parameters, const std::string& name,
              const ModelShape& model) {
  const int64_t width = model.options.width;
  const auto add = [&](const char* kind, Initial initial) {
    parameters.push_back(vector(name + kind, width, initial));
    parameters.back().split.y = {0, {width}};
  };
  add(".weight", neutral(model.style));
  if (model.options.bias && !model.style.rms_norm) add(".bias", Initial::kZeros);
}

/// A linear layer: widths of its output and input, and how its weight [out, in] is cut over x. The
/// other dim is the width of the residual stream, which y cuts.
struct LinearSize {
  int64_t out = 0, in = 0;
  AxisSplit split;
  double deviation = kInitialDeviation;
  ParameterSplit weight() const {
    return split.dim == 0 ? ParameterSplit{split, {1, {in}}} : ParameterSplit{split, {0, {out}}};
  }
  ParameterSplit bias() const {
    return split.dim == 0 ? ParameterSplit{split, {}} : ParameterSplit{{}, {0, {out}}};
  }
};

/// A bias goes with the outputs: cut like the weight's rows, over x or over y.
void add_linear(std::vector<ParameterShape>& parameters, const std::string& name,
                const LinearSize& size, bool bias) {
  parameters.push_back(matrix(name + ".weight", size.out, size.in, size.deviation));
  parameters.back().split = size.weight();
  if (!bias) return;
  parameters.push_back(vector(name + ".bias", size.out, Initial::kZeros));
  parameters.back().split = size.bias();
}

/// The RMSNorms of queries and keys. Ranks of x and y hold them whole.
void add_query_key_norms(std::vector<ParameterShape>& parameters, const std::string& name,
                         const BlockExtent& size) {
  if (!size.norms_query_key()) return;
  const bool apart = size.style.query_key_norm == QueryKeyNorm::kHead;
  const int64_t queries = apart ? size.head_width : size.attention_width();
  const int64_t keys = apart ? size.head_width : size.kv_width();
  parameters.push_back(vector(name + ".query_norm.weight", queries, neutral(size.style)));
  parameters.push_back(vector(name + ".key_norm.weight", keys, neutral(size.style)));
}

/// The norms around a branch, as far as the family has them.
void add_branch_norms(std::vector<ParameterShape>& parameters, const std::string& branch,
                      const ModelShape& model) {
  if (model.style.norm_before) add_norm(parameters, branch + "_norm", model);
  if (model.style.norm_behind) add_norm(parameters, branch + "_post_norm", model);
}

UnitShape transformer_unit(const std::string& name, const ModelShape& model) {
  const BlockExtent size = block_extent(model, 1, 1, Dtype::kFloat32);
  const int64_t width = size.width;
  const bool all = model.options.bias && size.style.biases == Biases::kAll;
  const bool qkv = model.options.bias && size.style.biases != Biases::kNone;
  const double residual =
      kInitialDeviation / std::sqrt(2.0 * static_cast<double>(model.options.layers));
  const int64_t attention_width = size.attention_width();
  const AxisSplit by_heads{0, {attention_width, size.kv_width(), size.kv_width()}};
  const AxisSplit by_channels{0, std::vector<int64_t>(size.style.gated ? 2 : 1, size.ffn_width)};
  std::vector<ParameterShape> parameters;
  add_branch_norms(parameters, name + ".attention", model);
  add_linear(parameters, name + ".attention.qkv", {size.qkv_width(), width, by_heads}, qkv);
  add_query_key_norms(parameters, name + ".attention", size);
  add_linear(parameters, name + ".attention.output",
             {width, attention_width, {1, {attention_width}}, residual}, all);
  add_branch_norms(parameters, name + ".mlp", model);
  add_linear(parameters, name + (size.style.gated ? ".mlp.gate_up" : ".mlp.up"),
             {size.up_width(), width, by_channels}, all);
  add_linear(parameters, name + ".mlp.down",
             {width, size.ffn_width, {1, {size.ffn_width}}, residual}, all);
  return make_unit(name, parameters);
}

/// One row per token: rows are cut over x, columns over y.
ParameterShape vocabulary_matrix(const char* name, const ModelShape& model) {
  const int64_t width = model.options.width;
  ParameterShape rows = matrix(name, model.vocabulary, width, kInitialDeviation);
  rows.split = {{0, {model.vocabulary}}, {1, {width}}};
  return rows;
}

UnitShape embedding_unit(const ModelShape& model) {
  const ShapeOptions& options = model.options;
  std::vector<ParameterShape> parameters = {vocabulary_matrix("embedding.token.weight", model)};
  if (!model.style.rotary) {
    parameters.push_back(
        matrix("embedding.position.weight", options.context, options.width, kInitialDeviation));
    parameters.back().split.y = {1, {options.width}};
  }
  if (options.tied_head) add_norm(parameters, "head.norm", model);
  return make_unit("embedding", parameters);
}

UnitShape head_unit(const ModelShape& model) {
  std::vector<ParameterShape> parameters = {vocabulary_matrix("head.weight", model)};
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
  if (options.head_width > 0 || options.window > 0)
    text += fmt::format(" head_width={} window={}", options.head_width, options.window);
  if (options.window_pattern > 0 || options.query_scalar > 0)
    text += fmt::format(" window_pattern={} query_scalar={}", options.window_pattern,
                        options.query_scalar);
  if (options.score_cap > 0 || options.logit_cap > 0)
    text += fmt::format(" score_cap={} logit_cap={}", options.score_cap, options.logit_cap);
  return text;
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

ModelShape model_shape(const ModelOptions& model, int64_t vocabulary) {
  if (model.family == kModulesFamily || model.family == kUnetFamily)
    return modules_shape(model, vocabulary);
  const int64_t rows = model.shape.vocabulary;
  if (rows == 0) return build(model.family, model.shape, vocabulary);
  if (rows < vocabulary) {
    ErrorPlace place;
    place.key = "model.shape.vocabulary";
    throw UserError(fmt::format("model.shape.vocabulary = {} is below the {} tokens of the "
                                "tokenizer; the nearest valid value is {} (or 0)",
                                rows, vocabulary, vocabulary),
                    place);
  }
  return build(model.family, model.shape, rows);
}

ModelShape gpt2_shape(const ShapeOptions& options, int64_t vocabulary) {
  return build("gpt2", options, vocabulary);
}

ModelShape llama_shape(const ShapeOptions& options, int64_t vocabulary) {
  return build("llama", options, vocabulary);
}

}  // namespace strait
