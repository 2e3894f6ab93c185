#include "strait/config/validate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "strait/base/errors.h"
#include "strait/config/check_chain.h"
#include "strait/config/check_key.h"
#include "strait/config/check_mesh.h"
#include "strait/config/cluster_file.h"
#include "strait/config/document_rows.h"
#include "strait/config/keys.h"
#include "strait/config/place.h"
#include "strait/config/precision.h"
#include "strait/data/synthetic.h"
#include "strait/kernel/product_choice.h"
#include "strait/shape/modules.h"
#include "strait/shape/shape.h"
#include "strait/shape/unet.h"
#include "strait/tokenizer/ids_tokenizer.h"
#include "strait/topology/nearest.h"

namespace strait {
namespace {

/// Refuses a key that is not at its default although `reason` keeps it from taking effect.
void refuse_without_effect(const Run& run, const std::string& name, const std::string& reason) {
  static const Run defaults;
  const Key& key = *find_key(name);
  if (same_value(key, run, defaults)) return;
  refuse_key(run, name,
             fmt::format("{} = {} cannot take effect: {}; the nearest valid value is {}", name,
                         value_text(key, run), reason, value_text(key, defaults)));
}

void check_name(const Run& run) {
  const std::string good = nearest_run_name(run.name);
  if (good != run.name)
    refuse_key(run, "name",
               fmt::format("name = {} cannot name a folder; the nearest valid name is \"{}\"",
                           toml_string(run.name), good));
}

void check_rope_effect(const Run& run, const char* key) {
  if (!block_style(run.model.family).rotary)
    refuse_without_effect(run, key,
                          fmt::format("model.family = \"{}\" has no RoPE", run.model.family));
}

/// `key` says how frequencies are stretched; a preset that fills it may leave it without effect.
void check_stretching_effect(const Run& run, const char* key) {
  const RopeOptions& rope = run.model.shape.rope;
  const bool is_context = key == std::string_view("model.rope.original_context");
  if (!block_style(run.model.family).rotary) return;
  if (rope.factor != 1.0 && (is_context || rope.original_context != 1)) return;
  Run filled;
  filled.model = model_preset(run.model.preset);
  if (same_value(*find_key(key), run, filled)) return;
  refuse_without_effect(run, key,
                        rope.factor == 1.0
                            ? "model.rope.factor = 1 stretches nothing"
                            : "model.rope.original_context = 1 stretches all wave lengths alike");
}

/// A pattern longer than the model names no block. Those of presets stay where there are fewer
/// layers.
void check_window_pattern(const Run& run) {
  const ShapeOptions& shape = run.model.shape;
  if (shape.window_pattern <= shape.layers) return;
  for (const std::string& name : model_preset_names()) {
    const ModelOptions preset = model_preset(name);
    if (preset.shape.window_pattern == shape.window_pattern &&
        (name == run.model.preset || preset.family == run.model.family))
      return;
  }
  refuse_key(run, "model.shape.window_pattern",
             fmt::format("model.shape.window_pattern = {} cannot take effect with {} blocks; the "
                         "nearest valid value is {}",
                         shape.window_pattern, shape.layers, shape.layers > 1 ? shape.layers : 0));
}

void check_local_rope_effect(const Run& run) {
  const char* key = "model.rope.local_theta";
  if (!block_style(run.model.family).local_rope)
    refuse_without_effect(
        run, key,
        fmt::format("all blocks of model.family = \"{}\" turn by theta", run.model.family));
  if (run.model.shape.window == 0)
    refuse_without_effect(run, key, "model.shape.window = 0 leaves no block with a window");
}

void check_rope_pairs(const Run& run) {
  const ShapeOptions& shape = run.model.shape;
  if (!block_style(run.model.family).rotary || shape.head_width > 0 ||
      shape.width % shape.heads != 0)
    return;
  const int64_t head_width = shape.width / shape.heads;
  if (head_width % 2 != 0)
    refuse_key(run, run.is_set("model.shape.heads") ? "model.shape.heads" : "model.shape.width",
               fmt::format("width {} over {} heads gives {} elements per head, but RoPE turns "
                           "pairs; the nearest valid width is {}",
                           shape.width, shape.heads, head_width, (head_width + 1) * shape.heads));
}

void check_rope_factors(const Run& run) {
  const RopeOptions& rope = run.model.shape.rope;
  if (block_style(run.model.family).rotary &&
      rope.high_frequency_factor <= rope.low_frequency_factor)
    refuse_key(run,
               run.is_set("model.rope.high_frequency_factor") ? "model.rope.high_frequency_factor"
                                                              : "model.rope.low_frequency_factor",
               fmt::format("model.rope.high_frequency_factor = {} is not above "
                           "model.rope.low_frequency_factor = {}; the nearest valid value is {}",
                           rope.high_frequency_factor, rope.low_frequency_factor,
                           rope.low_frequency_factor + 1));
}

void check_heads(const Run& run) {
  const ShapeOptions& shape = run.model.shape;
  if (shape.head_width == 0 && shape.width % shape.heads != 0)
    refuse_key(
        run, run.is_set("model.shape.heads") ? "model.shape.heads" : "model.shape.width",
        fmt::format(
            "{} heads do not divide the width {}; the nearest valid heads is {}, or a width of {}",
            shape.heads, shape.width, nearest_divisor(shape.width, shape.heads),
            std::max<int64_t>((shape.width + shape.heads / 2) / shape.heads, 1) * shape.heads));
}

void check_kv_heads(const Run& run) {
  const ShapeOptions& shape = run.model.shape;
  if (run.model.family == "gpt2" && shape.kv_heads != shape.heads)
    refuse_key(run, "model.shape.kv_heads",
               fmt::format("model.shape.kv_heads = {}: gpt2 has as many key/value heads as heads; "
                           "the nearest valid "
                           "value is {}",
                           shape.kv_heads, shape.heads));
  if (shape.heads % shape.kv_heads != 0)
    refuse_key(
        run, "model.shape.kv_heads",
        fmt::format("model.shape.kv_heads = {} does not divide the {} heads; the nearest "
                    "valid value is {}",
                    shape.kv_heads, shape.heads, nearest_divisor(shape.heads, shape.kv_heads)));
}

void check_sgd_eps(const Run& run) {
  if (run.optimizer.kind == "sgd")
    refuse_without_effect(run, "optimizer.eps", "optimizer.kind = \"sgd\" has no eps");
}

void check_sgd_betas(const Run& run) {
  const OptimizerOptions& optimizer = run.optimizer;
  if (optimizer.kind != "sgd" || optimizer.betas[1] == OptimizerOptions().betas[1]) return;
  refuse_key(
      run, "optimizer.betas",
      fmt::format("the second of optimizer.betas = {} cannot take effect: optimizer.kind = "
                  "\"sgd\" uses "
                  "only the first; the nearest valid value is [{}, {}]",
                  value_text(*find_key("optimizer.betas"), run), toml_number(optimizer.betas[0]),
                  toml_number(OptimizerOptions().betas[1])));
}

void check_decay_effect(const Run& run, const char* key) {
  // The default minimum follows a lower peak (parse_run), so a follower is as good as the default.
  const bool follows =
      std::string_view(key) == "optimizer.minimum_learning_rate" && !run.is_set(key);
  if (run.optimizer.schedule == "constant" && !follows)
    refuse_without_effect(run, key, "optimizer.schedule = \"constant\" never decays");
}

void check_minimum_rate(const Run& run) {
  const OptimizerOptions& optimizer = run.optimizer;
  if (optimizer.schedule == "constant" ||
      optimizer.minimum_learning_rate <= optimizer.learning_rate)
    return;
  refuse_key(run, "optimizer.minimum_learning_rate",
             fmt::format("optimizer.minimum_learning_rate = {} is above optimizer.learning_rate "
                         "= {}; the nearest "
                         "valid value is {}",
                         optimizer.minimum_learning_rate, optimizer.learning_rate,
                         optimizer.learning_rate));
}

void check_precision(const Run& run) {
  if (run.train.precision == "fp16" && run.runtime.device != "cuda")
    refuse_key(
        run, "train.precision",
        fmt::format("train.precision = \"fp16\" needs a device, but runtime.device is \"{}\"; "
                    "the nearest valid value is \"bf16\"",
                    run.runtime.device));
}

void check_products(const Run& run) {
  if (run.runtime.products == "auto") return;
  const std::string& precision = run.train.precision;
  if (is_chain(run))
    refuse_without_effect(
        run, "runtime.products",
        fmt::format("LibTorch multiplies in blocks of model.family = \"{}\"", run.model.family));
  if (!kernel::suits(kernel::product_named(run.runtime.products, "runtime.products"),
                     dtype_of(precision)))
    refuse_without_effect(
        run, "runtime.products",
        fmt::format("that does not multiply train.precision = \"{}\"", precision));
  if (run.runtime.device == "cuda")
    refuse_without_effect(run, "runtime.products", "a device multiplies by its own library");
  if (run.runtime.deterministic && run.runtime.products == "onednn")
    refuse_key(run, "runtime.products",
               "runtime.products = \"onednn\" adds in an order that depends on threads, which "
               "runtime.deterministic = true rules out; the nearest valid value is \"auto\"");
}

/// What an update needs that is known only when all gradients are.
/// Every K-th of fewer blocks is none.
void check_recompute(const Run& run) {
  const std::string form = "every:";
  if (!run.train.recompute.starts_with(form)) return;
  const int64_t blocks = run.model.shape.layers;
  if (std::stoll(run.train.recompute.substr(form.size())) <= blocks) return;
  refuse_key(
      run, "train.recompute",
      fmt::format("train.recompute = {} cannot take effect with {} blocks; the nearest valid "
                  "value is {}",
                  toml_string(run.train.recompute), blocks,
                  toml_string(form + std::to_string(blocks))));
}

void check_in_backward(const Run& run) {
  if (!run.optimizer.in_backward) return;
  const auto refuse = [&](const std::string& other, const std::string& instead) {
    refuse_key(run, "optimizer.in_backward",
               fmt::format("optimizer.in_backward = true updates weights before all gradients are "
                           "known, but {} needs them; the nearest valid value is false, or set {}",
                           other, instead));
  };
  if (run.train.clip_norm > 0)
    refuse(fmt::format("train.clip_norm = {:g}", run.train.clip_norm), "train.clip_norm = 0");
  if (run.train.non_finite == "skip")
    refuse("train.non_finite = \"skip\"", "train.non_finite = \"stop\"");
  if (run.train.precision == "fp16")
    refuse("the loss scale of train.precision = \"fp16\"", "train.precision = \"bf16\"");
}

void check_evaluation_effect(const Run& run, const char* key) {
  if (run.data.validation_share == 0)
    refuse_without_effect(run, key, "data.validation_share = 0 leaves nothing to evaluate");
}

void check_keep_best(const Run& run) {
  if (run.evaluation.every_steps == 0)
    refuse_without_effect(run, "checkpoint.keep_best",
                          "evaluation.every_steps = 0 evaluates only after the last step");
}

void check_resume(const Run& run) {
  if (run.checkpoint.resume == "auto" && run.output.run_dir.empty())
    refuse_key(run, "checkpoint.resume",
               "checkpoint.resume = \"auto\" cannot take effect without output.run_dir, because "
               "every run then gets a "
               "new folder; set output.run_dir, or the nearest valid value is \"never\"");
}

void check_overlap(const Run& run, int64_t ranks) {
  if (run.output.overlap_steps > 0 && ranks == 1)
    refuse_key(run, "output.overlap_steps",
               "output.overlap_steps > 0, but a run of one rank communicates with nobody; the "
               "nearest valid value is 0");
}

/// Keys at their defaults choose nothing.
void check_cluster_choice(const Run& run) {
  static const Run defaults;
  std::vector<std::string> chosen;
  for (const char* key : {"cluster.preset", "cluster.file", "cluster.levels"})
    if (!same_value(*find_key(key), run, defaults)) chosen.push_back(key);
  if (chosen.size() > 1)
    refuse_key(run, chosen[1],
               fmt::format("{} and {} are both written; exactly one of preset, file and levels can "
                           "take effect: remove one",
                           chosen[0], chosen[1]));
}

/// Other rates than those of data sheets are measured.
void check_compute_share(const Run& run) {
  if (run.cluster.compute_share < 1 && run.cluster.preset == "localhost")
    refuse_key(
        run, "cluster.compute_share",
        fmt::format("cluster.compute_share = {} cannot take effect: it is for the rates of a "
                    "cluster.preset other than localhost; the nearest valid value is 1",
                    run.cluster.compute_share));
}

void check_span(const Run& run, const Cluster& cluster, const char* word, const std::string& span) {
  std::vector<std::string> names = {"none", "world"};
  for (const Level& level : cluster.levels)
    if (level.name != "world") names.push_back(level.name);
  if (std::find(names.begin(), names.end(), span) != names.end()) return;
  int64_t number = 0;
  const char* end = span.data() + span.size();
  const auto [stop, code] = std::from_chars(span.data(), end, number);
  if (code == std::errc() && stop == end && number >= 1) return;
  refuse_key(run, fmt::format("placement.spans.{}", word),
             fmt::format("placement.spans.{} = {}: a span is none, a level of cluster {} or a "
                         "number of ranks >= 1; "
                         "the nearest valid value is \"{}\" ({})",
                         word, toml_string(span), cluster.name,
                         nearest_choice(span.substr(0, 100), names), fmt::join(names, ", ")));
}

/// Checks of keys against each other, by the sections that they read.
void check_model(const Run& run, Problems& problems) {
  if (problems.concern("model.family")) return;
  if (run.model.family != kModulesFamily)
    problems.attempt([&] {
      refuse_without_effect(
          run, "model.path",
          fmt::format("model.family = \"{}\" reads no folder of modules", run.model.family));
    });
  if (run.model.family != kUnetFamily) problems.attempt([&] { check_unet_effect(run); });
  if (is_chain(run)) return check_chain(run, problems);
  problems.attempt(
      [&] { with_place(run, [&] { check_family(run.model.shape, run.model.family); }); });
  problems.attempt([&] { check_heads(run); });
  problems.attempt([&] { check_kv_heads(run); });
  for (const char* key :
       {"model.rope.theta", "model.rope.factor", "model.rope.low_frequency_factor",
        "model.rope.high_frequency_factor", "model.rope.original_context"})
    problems.attempt([&] { check_rope_effect(run, key); });
  problems.attempt([&] { check_window_pattern(run); });
  problems.attempt([&] { check_local_rope_effect(run); });
  problems.attempt([&] { check_rope_pairs(run); });
  problems.attempt([&] { check_rope_factors(run); });
  for (const char* key : {"model.rope.low_frequency_factor", "model.rope.high_frequency_factor",
                          "model.rope.original_context"})
    problems.attempt([&] { check_stretching_effect(run, key); });
}

void check_optimizer(const Run& run, Problems& problems) {
  problems.attempt([&] { check_sgd_eps(run); });
  problems.attempt([&] { check_sgd_betas(run); });
  for (const char* key : {"optimizer.minimum_learning_rate", "optimizer.decay_steps"})
    problems.attempt([&] { check_decay_effect(run, key); });
  problems.attempt([&] { check_minimum_rate(run); });
}

void check_control(const Run& run, int64_t ranks, Problems& problems) {
  for (const char* key : {"evaluation.every_steps", "evaluation.batches", "checkpoint.keep_best"})
    problems.attempt([&] { check_evaluation_effect(run, key); });
  problems.attempt([&] { check_keep_best(run); });
  problems.attempt([&] { check_resume(run); });
  problems.attempt([&] { check_overlap(run, ranks); });
}

void check_on_cluster(const Run& run, int64_t ranks, Problems& problems) {
  const PlacementSpans& spans = run.placement.spans;
  problems.attempt([&] {
    const Cluster cluster = resolve_cluster(run, ranks);
    for (const auto& [word, span] :
         {std::pair("weights", &spans.weights), std::pair("secondary", &spans.secondary),
          std::pair("gradients", &spans.gradients), std::pair("optimizer", &spans.optimizer)})
      problems.attempt([&, word = word, span = span] { check_span(run, cluster, word, *span); });
    if (!problems.concern("mesh.")) problems.attempt([&] { check_mesh_levels(run, cluster); });
  });
}

}  // namespace

std::string nearest_run_name(const std::string& name) {
  std::string good;
  for (const char c : name)
    good +=
        std::isalnum(static_cast<uint8_t>(c)) || c == '-' || c == '_' || (c == '.' && !good.empty())
            ? c
            : '-';
  const bool nothing_left = good != name && good.find_first_not_of("-.") == std::string::npos;
  return good.empty() || nothing_left ? "my-run" : good.substr(0, 100);
}

void check_keys(const Run& run) {
  for (const Key& key : run_keys()) check_key(key, run);
}

void validate_run(const Run& run, int64_t ranks, Problems& problems) {
  if (ranks < 1)
    return problems.attempt(
        [&] { throw UserError(fmt::format("{} ranks; the nearest valid number is 1", ranks)); });
  for (const Key& key : run_keys()) problems.attempt([&] { check_key(key, run); });
  problems.attempt([&] { check_name(run); });
  if (!problems.concern("model.")) check_model(run, problems);
  if (!problems.concern("model.")) problems.attempt([&] { check_images(run); });
  problems.attempt([&] { check_precision(run); });
  problems.attempt([&] { check_products(run); });
  problems.attempt([&] { check_in_backward(run); });
  if (!problems.concern("train.recompute") && !problems.concern("model."))
    problems.attempt([&] { check_recompute(run); });
  if (!problems.concern("optimizer.")) check_optimizer(run, problems);
  check_control(run, ranks, problems);
  problems.attempt([&] { check_cluster_choice(run); });
  problems.attempt([&] { check_compute_share(run); });
  if (!problems.concern("mesh.")) problems.attempt([&] { check_mesh_sizes(run, ranks); });
  if (!problems.concern("mesh.") && !problems.concern("model."))
    problems.attempt([&] { check_mesh_model(run, ranks); });
  if (!problems.concern("mesh.") && !problems.concern("model.") && !problems.concern("pipeline."))
    problems.attempt([&] { check_pipeline(run); });
  if (!problems.concern("train.") && !problems.concern("model.") &&
      !problems.concern("sequence.capacity_tokens"))
    problems.attempt([&] { check_document_rows(run); });
  if (!problems.concern("cluster.")) check_on_cluster(run, ranks, problems);
  if (!problems.concern("train.") && !problems.concern("mesh.") &&
      !problems.concern("sequence.capacity_tokens"))
    problems.attempt([&] { resolve_batch(run, ranks, 1); });
}

void validate_run(const Run& run, int64_t ranks) {
  Problems problems;
  validate_run(run, ranks, problems);
  problems.throw_first();
}

void require_data(const Run& run) {
  if (run.data.path.empty())
    refuse_key(
        run, "data.path",
        "data.path is required to train: a file or folder of text or tokens; write it under [data] "
        "or give "
        "--set data.path=FILE");
}

std::optional<int64_t> known_vocabulary(const DataOptions& data) {
  if (data.tokenizer == "byte") return 256;
  if (is_synthetic(data) && !names_ids(data.tokenizer)) return kSyntheticVocabulary;
  const std::string prefix = data.tokenizer.substr(0, 4);
  if (prefix != "bpe:" && prefix != "ids:") return std::nullopt;
  int64_t number = 0;
  const char* end = data.tokenizer.data() + data.tokenizer.size();
  const auto [stop, code] = std::from_chars(data.tokenizer.data() + prefix.size(), end, number);
  if (code != std::errc() || stop != end || number < 1) return std::nullopt;
  return number;
}

}  // namespace strait
