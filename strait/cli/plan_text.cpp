#include "strait/cli/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "strait/config/keys.h"
#include "strait/draft/segment_ops.h"
#include "strait/draft/shard_kernels.h"
#include "strait/plan/codec_advice.h"
#include "strait/predict/predict.h"
#include "strait/program/classes.h"
#include "strait/program/memory.h"
#include "strait/shape/modules.h"

namespace strait::cli {

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 5) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

namespace {

std::string group_line(const program::Group& group, const Cluster& cluster) {
  const std::string how =
      group.lists.empty() ? fmt::format("{} apart", group.stride) : std::string("listed");
  return fmt::format("group       {}: {} ranks, {}, over {}", group.name, group.size, how,
                     cluster.levels[group.level].name);
}

/// A line for each group of any class.
void add_groups(const std::vector<program::Program>& classes, const Cluster& cluster,
                std::vector<std::string>& lines) {
  const auto first = static_cast<int64_t>(lines.size());
  for (const program::Program& step : classes)
    for (const program::Group& group : step.groups) {
      std::string line = group_line(group, cluster);
      if (group.size > 1 && std::count(lines.begin() + first, lines.end(), line) == 0)
        lines.push_back(std::move(line));
    }
}

/// "output 4, qkv 8": products that are taken apart, and into how many chunks. Of a product behind
/// a gather and before a scatter that is once each.
std::string tiles_text(const std::vector<program::Program>& classes) {
  using Product = std::pair<int, Phase>;
  std::map<Product, std::set<std::pair<int64_t, int64_t>>> chunks;  // shard, first row
  const auto note = [&](const program::Op& op) {
    if (op.kernel == nullptr || !draft::works_on_rows(op)) return;
    const SegmentRange range = draft::range_of(op);
    const Phase phase = draft::phase_of(op);
    const int product = phase == Phase::kForward ? range.begin : range.end - 1;
    const int64_t shard =
        draft::works_on_shard(op) ? program::attribute<int64_t>(op, draft::kShard) : 0;
    chunks[{product, phase}].emplace(shard, draft::rows_of(op).begin);
  };
  for (const program::Program& step : classes) program::for_each_op(step.body, note);
  std::string text;
  for (const auto& [product, found] : chunks) {
    const bool both = chunks.contains({product.first, Phase::kForward}) &&
                      chunks.contains({product.first, Phase::kBackwardInput});
    const char* phase = !both ? "" : product.second == Phase::kForward ? " forward" : " backward";
    text += fmt::format("{}{}{} {}", text.empty() ? "" : ", ",
                        segment_name(static_cast<Segment>(product.first)), phase, found.size());
  }
  return text;
}

/// "x 2, data 2, stage 2": axes of more than one rank.
std::string axes_text(const Mesh& mesh) {
  std::string text;
  for (const MeshAxis& axis : mesh.axes())
    if (axis.size > 1)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis.name, axis.size);
  return text;
}

}  // namespace

std::string peak_warning(double utilization, const Cluster& cluster, Dtype dtype) {
  if (!(utilization > 1)) return "";
  return fmt::format(
      "warning     the predicted MFU is {:.0f} %, above 100 %: the peak of {:.4g} GFLOP/s per rank "
      "({}) is less than the rates of whole blocks",
      100 * utilization, cluster.flops_per_second(dtype) / 1e9, cluster.rates_source);
}

namespace {

void warn_of_policy(const strategy::Policy& policy, int64_t data_ranks,
                    std::vector<std::string>& lines) {
  if (policy.local_steps() && policy.replicas == 1 && data_ranks > 1)
    lines.push_back(fmt::format(
        "warning     all {} data ranks are one replica, which has none to agree with: gradients "
        "are reduced in every step, and sync.outer.codec has no effect",
        data_ranks));
}

/// Keys of windows and RoPE that leave a block as it is, but for those that the preset fills.
void warn_of_windows(const Run& run, std::vector<std::string>& lines) {
  if (run.model.modules) return;
  Run filled;
  filled.model = model_preset(run.model.preset);
  const auto warn = [&](const char* name, const std::string& why) {
    const Key& key = *find_key(name);
    if (run.is_set(name) && !same_value(key, run, filled))
      lines.push_back(
          fmt::format("warning     {} = {} has no effect: {}", name, value_text(key, run), why));
  };
  const ShapeOptions& shape = run.model.shape;
  if (shape.window > 0 && shape.window >= shape.context)
    warn("model.shape.window", fmt::format("the context has {} tokens", shape.context));
  bool all_windows = block_style(run.model.family).local_rope;
  for (int64_t block = 0; block < shape.layers; ++block)
    all_windows = all_windows && shape.has_window(block);
  if (!all_windows) return;
  const std::string why =
      fmt::format("every block has a window, and turns by model.rope.local_theta = {}",
                  value_text(*find_key("model.rope.local_theta"), run));
  for (const char* name : {"model.rope.theta", "model.rope.factor"}) warn(name, why);
}

}  // namespace

std::vector<std::string> effect_warnings(const strategy::Design& design) {
  std::vector<std::string> lines;
  warn_of_policy(design.policy, design.batch.data_ranks, lines);
  const Run& run = design.run;
  warn_of_windows(run, lines);
  const auto warn = [&](const char* key, bool is_codec, const char* why) {
    if (run.is_set(key) && is_codec)
      lines.push_back(fmt::format("warning     {} has no effect: {}", key, why));
  };
  const strategy::Policy& policy = design.policy;
  const int64_t replicas = policy.local_steps() ? policy.replicas : 1;
  if (design.batch.data_ranks * design.mesh.axis("sequence").size == replicas) {
    const char* const why = "no gradients are summed over ranks";
    const auto is_codec = [](const std::string& text) { return text != "none"; };
    warn("placement.codecs.gradients",
         std::ranges::any_of(run.placement.codecs.gradients, is_codec), why);
    warn("compression.codec", run.compression.codec != "none", why);
  }
  if (policy.local_steps() && design.batch.data_ranks == 1)
    warn("sync.outer.codec", run.sync.outer.codec != "none", "one replica sends no differences");
  return lines;
}

std::vector<std::string> plan_lines(const strategy::Design& design, const sim::Result& simulated,
                                    const cost::Cost& cost, const Corpus* corpus) {
  const Run& run = design.run;
  const Resolved& batch = design.batch;
  std::vector<std::string> lines;
  const ShapeOptions& shape = run.model.shape;
  if (run.model.modules)
    lines.push_back(
        fmt::format("model       {}: {} blocks, vocabulary {}, context {}; {:.2f} "
                    "million parameters",
                    run.model.modules->description(), shape.layers, design.shape.vocabulary,
                    shape.context, static_cast<double>(design.shape.parameters()) / 1e6));
  else
    lines.push_back(fmt::format(
        "model       {} {}: {} layers, {} heads{}, width {}, context {}; {:.2f} million parameters",
        run.model.preset, run.model.family, shape.layers, shape.heads,
        shape.kv_heads == shape.heads ? "" : fmt::format(" ({} key/value)", shape.kv_heads),
        shape.width, shape.context, static_cast<double>(design.shape.parameters()) / 1e6));
  lines.push_back(fmt::format("ranks       {} with {} compute thread{} each, {}", batch.ranks,
                              batch.threads_per_rank, batch.threads_per_rank == 1 ? "" : "s",
                              run.train.precision));
  if (design.mesh.ranks() > batch.data_ranks)
    lines.push_back(fmt::format("mesh        {}; innermost first", axes_text(design.mesh)));
  lines.push_back(fmt::format(
      "batch       {} sequences = {} per rank and micro-step x {} ranks x {} micro-steps",
      batch.global_batch_size, batch.micro_batch_size, batch.data_ranks, batch.accumulation));
  lines.push_back(
      fmt::format("placement   {}: {}", design.placement.preset, design.placement.describe()));
  if (design.policy.local_steps())
    lines.push_back(fmt::format("rounds      {}", design.policy.describe()));
  std::ranges::move(effect_warnings(design), std::back_inserter(lines));
  const std::vector<program::Program>& classes = design.steady();
  if (classes.size() > 1)
    lines.push_back(
        fmt::format("classes     {} of ranks that run different programs", classes.size()));
  add_groups(classes, design.cluster, lines);
  if (const std::string tiles = tiles_text(classes); !tiles.empty())
    lines.push_back(fmt::format("tiles       products in chunks of rows: {}", tiles));
  std::string bytes;
  for (size_t level = 0; level < design.cluster.levels.size(); ++level)
    bytes += fmt::format("{}{} {}", level == 0 ? "" : ", ", design.cluster.levels[level].name,
                         bytes_text(static_cast<double>(cost.level_bytes[level])));
  lines.push_back(fmt::format("traffic     per step over all ranks: {}", bytes));
  const std::vector<program::MemoryUse> peaks = predict::peak_memories(design);
  const size_t fullest = program::largest(peaks);
  const program::MemoryUse& peak = peaks[fullest];
  const program::MemoryUse state = program::resident_memory(design.round.classes[fullest],
                                                            program::first_rank(classes[fullest]));
  lines.push_back(fmt::format(
      "memory      {} per rank at the peak, {} of it state (weights {}, gradients {}, optimizer "
      "{})",
      bytes_text(static_cast<double>(peak.total())), bytes_text(static_cast<double>(state.total())),
      bytes_text(static_cast<double>(state.weights)),
      bytes_text(static_cast<double>(state.gradients)),
      bytes_text(static_cast<double>(state.optimizer))));
  const double share = simulated.seconds > 0 ? simulated.exposed_seconds / simulated.seconds : 0;
  std::string predicted =
      fmt::format("predicted   {} per step{}, {:.1f} % of it waiting for links",
                  seconds_text(simulated.seconds), prediction_note(design.cluster), 100 * share);
  if (simulated.bubble_seconds > 0)
    predicted += fmt::format(", {:.1f} % for other ranks", 100 * simulated.bubble_share());
  lines.push_back(std::move(predicted));
  lines.push_back("figures     " + figures_text(design.cluster));
  const double peak_rate =
      static_cast<double>(batch.ranks) * design.cluster.flops_per_second(design.dtype);
  lines.push_back(fmt::format("peak        {:.4g} GFLOP/s in {} over all ranks, {}",
                              peak_rate / 1e9, run.train.precision, design.cluster.rates_source));
  const double utilization = static_cast<double>(tokens_per_step(run, batch)) *
                             design.model_flops_per_token / simulated.seconds / peak_rate;
  if (std::string warning = peak_warning(utilization, design.cluster, design.dtype);
      !warning.empty())
    lines.push_back(std::move(warning));
  for (std::string& line : plan::codec_advice(design, simulated.seconds, corpus))
    lines.push_back(std::move(line));
  return lines;
}

}  // namespace strait::cli
