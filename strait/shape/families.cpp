// The families of decoder-only transformers, a row each, and which sizes each can have.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "strait/base/errors.h"
#include "strait/shape/modules.h"
#include "strait/shape/shape.h"
#include "strait/shape/unet.h"

namespace strait {
namespace {

struct Family {
  const char* name;
  BlockStyle style;
};

// Radford et al. 2019; Touvron et al. 2023; Jiang et al. 2023 (Mistral); Qwen Team 2024 and 2025;
// Walsh et al. 2025 (OLMo 2); Gemma Team 2024 and 2025 (Gemma 2 and 3).
constexpr std::array kFamilies = {
    Family{"gpt2", {}},
    Family{"llama", {.rms_norm = true, .rotary = true, .gated = true}},
    Family{"mistral",
           {.rms_norm = true,
            .rotary = true,
            .gated = true,
            .windows = true,
            .biases = Biases::kNone}},
    Family{"qwen2", {.rms_norm = true, .rotary = true, .gated = true, .biases = Biases::kQkv}},
    Family{"qwen3",
           {.rms_norm = true,
            .rotary = true,
            .gated = true,
            .biases = Biases::kNone,
            .query_key_norm = QueryKeyNorm::kHead}},
    Family{"olmo2",
           {.rms_norm = true,
            .rotary = true,
            .gated = true,
            .norm_before = false,
            .norm_behind = true,
            .biases = Biases::kNone,
            .query_key_norm = QueryKeyNorm::kWidth}},
    Family{"gemma2",
           {.rms_norm = true,
            .rotary = true,
            .gated = true,
            .norm_behind = true,
            .windows = true,
            .alternates = true,
            .query_scalar = true,
            .score_cap = true,
            .logit_cap = true,
            .norm_from_one = true,
            .gelu_gate = true,
            .scaled_embedding = true,
            .biases = Biases::kNone}},
    Family{"gemma3",
           {.rms_norm = true,
            .rotary = true,
            .gated = true,
            .norm_behind = true,
            .windows = true,
            .alternates = true,
            .local_rope = true,
            .query_scalar = true,
            .logit_cap = true,
            .norm_from_one = true,
            .gelu_gate = true,
            .scaled_embedding = true,
            .biases = Biases::kNone,
            .query_key_norm = QueryKeyNorm::kHead}},
};

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
  const int64_t head_width = options.head_elements();
  if (head_width % 2 != 0)
    refuse("shape.width",
           fmt::format("{} / {} heads = {}: RoPE turns pairs, so the width of a head must be even; "
                       "nearest above: {}",
                       options.width, options.heads, head_width, (head_width + 1) * options.heads));
  const RopeOptions& rope = options.rope;
  if (!(rope.theta > 0.0)) refuse("rope.theta", fmt::format("{} is not above 0", rope.theta));
  if (!(rope.local_theta > 0.0))
    refuse("rope.local_theta", fmt::format("{} is not above 0", rope.local_theta));
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

/// What attention scores are divided by, and the soft caps.
void check_scores(const ShapeOptions& options, const std::string& family, const BlockStyle& style) {
  if (options.query_scalar < 0.0)
    refuse("shape.query_scalar", fmt::format("{} is below 0", options.query_scalar));
  if (options.query_scalar > 0.0 && !style.query_scalar)
    refuse("shape.query_scalar",
           fmt::format("{}: family {} divides scores by the root of the head's elements; the "
                       "nearest valid value is 0",
                       options.query_scalar, family));
  const auto check_cap = [&](const char* key, double cap, bool has, const char* what) {
    if (!(cap >= 0.0)) refuse(key, fmt::format("{} is below 0", cap));
    if (cap > 0.0 && !has)
      refuse(key, fmt::format("{}: family {} does not cap {}; the nearest valid value is 0, or "
                              "model.family = \"gemma2\"",
                              cap, family, what));
  };
  check_cap("shape.score_cap", options.score_cap, style.score_cap, "attention scores");
  check_cap("shape.logit_cap", options.logit_cap, style.logit_cap, "logits");
}

/// Which blocks have a window.
void check_window(const ShapeOptions& options, const std::string& family, const BlockStyle& style) {
  if (options.window < 0) refuse("shape.window", fmt::format("{} is below 0", options.window));
  if (options.window_pattern < 0)
    refuse("shape.window_pattern", fmt::format("{} is below 0", options.window_pattern));
  if (options.window > 0 && !style.windows)
    refuse("shape.window",
           fmt::format("{}: family {} attends all earlier tokens; the nearest valid "
                       "value is 0, or model.family = \"mistral\"",
                       options.window, family));
  if (options.window_pattern == 0) return;
  if (!style.alternates)
    refuse("shape.window_pattern",
           fmt::format("{}: the blocks of family {} attend alike; the nearest valid value is 0, or "
                       "model.family = \"gemma3\"",
                       options.window_pattern, family));
  if (options.window == 0)
    refuse("shape.window_pattern",
           fmt::format("{}: window = 0 leaves no block with a window; the nearest valid value is "
                       "0, or model.shape.window = {}",
                       options.window_pattern, (options.context + 1) / 2));
  if (options.window_pattern == 1)
    refuse("shape.window_pattern",
           fmt::format("1 leaves no block with the window of {}; the nearest valid value is 2",
                       options.window));
}

}  // namespace

const std::vector<std::string>& family_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Family& family : kFamilies) list.emplace_back(family.name);
    return list;
  }();
  return names;
}

bool is_family(const std::string& name) {
  return std::ranges::any_of(kFamilies, [&](const Family& known) { return name == known.name; });
}

BlockStyle block_style(const std::string& family) {
  if (family == kModulesFamily || family == kUnetFamily) return {};
  for (const Family& known : kFamilies)
    if (family == known.name) return known.style;
  refuse("family", fmt::format("\"{}\" is not known; nearest: \"{}\"", family,
                               nearest_choice(family, family_names())));
}

void check_family(const ShapeOptions& options, const std::string& family) {
  const BlockStyle style = block_style(family);
  if (options.head_width < 0)
    refuse("shape.head_width", fmt::format("{} is below 0", options.head_width));
  if (options.head_width > 0 && !style.rotary)
    refuse("shape.head_width",
           fmt::format("{}: family {} has heads of width / heads; the nearest valid value is 0",
                       options.head_width, family));
  if (options.head_width % 2 != 0)
    refuse("shape.head_width",
           fmt::format("{} is odd, but RoPE turns pairs; the nearest valid value is {}",
                       options.head_width, options.head_width + 1));
  check_window(options, family, style);
  check_scores(options, family, style);
  if (options.bias && style.biases == Biases::kNone)
    refuse("shape.bias",
           fmt::format("family {} has no biases; the nearest valid value is false", family));
  if (options.dropout > 0.0 && style.norm_behind)
    refuse("shape.dropout",
           fmt::format("{}: family {} has no dropout; the nearest valid value is 0",
                       options.dropout, family));
}

void validate_shape(const ShapeOptions& options, int64_t vocabulary, const std::string& family) {
  const BlockStyle style = block_style(family);
  require_positive("layers", options.layers);
  require_positive("heads", options.heads);
  require_positive("width", options.width);
  require_positive("ffn_width", options.ffn_width);
  require_positive("context", options.context);
  check_kv_heads(options, family);
  if (options.head_width == 0 && options.width % options.heads != 0) {
    const int64_t per_head = (options.width + options.heads - 1) / options.heads;
    refuse("shape.width", fmt::format("{} is not a multiple of heads = {}; nearest above: {}",
                                      options.width, options.heads, per_head * options.heads));
  }
  check_family(options, family);
  if (style.rotary) check_rope(options);
  if (!(options.dropout >= 0.0 && options.dropout < 1.0)) {
    refuse("shape.dropout", fmt::format("{} is not in [0, 1)", options.dropout));
  }
  if (!(options.norm_eps > 0.0))
    refuse("shape.norm_eps", fmt::format("{} is not above 0", options.norm_eps));
  if (vocabulary < 1)
    throw UserError(fmt::format("a vocabulary of {} tokens has no token", vocabulary));
}

}  // namespace strait
