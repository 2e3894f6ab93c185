// Lays levels on ranks, and answers which level joins two ranks.
#include "strait/topology/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "strait/base/errors.h"
#include "strait/topology/limits.h"
#include "strait/topology/nearest.h"
#include "strait/topology/presets.h"

namespace strait {
namespace {

constexpr double kGiga = 1e9;

[[noreturn]] void refuse(const std::string& message) {
  ErrorPlace place;
  place.key = "cluster.levels";
  throw UserError(message, place);
}

void check_level(const LevelOptions& level) {
  if (level.name.empty() || level.name == "none" || std::isdigit(uint8_t(level.name[0])))
    refuse(fmt::format(
        "\"{}\" cannot name a level: a name starts with a letter and is not \"none\"", level.name));
  if (level.size < 0)
    refuse(fmt::format("level {}: size = {}; the nearest valid size is 0 (the rest)", level.name,
                       level.size));
  if (!(level.gb_per_second > 0) || !std::isfinite(level.gb_per_second))
    refuse(fmt::format("level {}: gb_per_second = {} must be above 0", level.name,
                       level.gb_per_second));
  const double bandwidth = std::clamp(level.gb_per_second, kLeastRate / kGiga, kMostRate / kGiga);
  if (level.gb_per_second != bandwidth)
    refuse(fmt::format("level {}: gb_per_second = {}; the nearest valid value is {:g}", level.name,
                       level.gb_per_second, bandwidth));
  if (!(level.latency_microseconds >= 0) || !std::isfinite(level.latency_microseconds))
    refuse(fmt::format("level {}: latency_microseconds = {}; the nearest valid value is 0",
                       level.name, level.latency_microseconds));
  if (level.latency_microseconds > kMostLatencySeconds * 1e6)
    refuse(fmt::format("level {}: latency_microseconds = {}; the nearest valid value is {:g}",
                       level.name, level.latency_microseconds, kMostLatencySeconds * 1e6));
  if (!(level.processor_share >= 0 && level.processor_share < 1))
    refuse(fmt::format("level {}: processor_share = {}; the nearest valid value is {}", level.name,
                       level.processor_share, level.processor_share >= 1 ? 0.99 : 0.0));
  if (level.links < 1)
    refuse(
        fmt::format("level {}: links = {}; the nearest valid value is 1", level.name, level.links));
}

void check_levels(const std::vector<LevelOptions>& levels) {
  std::set<std::string> names;
  int64_t rest_levels = 0;
  for (const LevelOptions& level : levels) {
    check_level(level);
    if (!names.insert(level.name).second)
      refuse(fmt::format("two levels are named \"{}\"; every level needs a name of its own",
                         level.name));
    if (level.size == 0 && ++rest_levels > 1)
      refuse(fmt::format("level {}: only one level may have size = 0 (the rest)", level.name));
  }
}

/// Without a level that takes the rest, the levels must hold all ranks.
void check_capacity(const std::vector<LevelOptions>& levels, int64_t ranks) {
  int64_t capacity = 1;
  for (const LevelOptions& level : levels) {
    if (level.size >= ranks || capacity * level.size >= ranks) return;
    capacity *= level.size;
  }
  refuse(
      fmt::format("the levels hold {} ranks and the run has {}; the nearest valid number of ranks "
                  "is {}, or give "
                  "the outermost level {} size = 0 (the rest)",
                  capacity, ranks, capacity, levels.back().name));
}

/// Fan-outs for `ranks` ranks. A group that the ranks do not fill is cut to what they fill.
std::vector<int64_t> lay_sizes(const std::vector<LevelOptions>& levels, int64_t ranks) {
  const auto rest_level = std::find_if(levels.begin(), levels.end(),
                                       [](const LevelOptions& level) { return level.size == 0; });
  if (rest_level == levels.end()) check_capacity(levels, ranks);
  int64_t outside = 1;  // ranks that the levels outside "the rest" ask for
  for (auto level = rest_level; level != levels.end(); ++level)
    if (level->size > 0 && outside <= ranks) outside *= std::min(level->size, ranks + 1);
  std::vector<int64_t> sizes;
  int64_t left = ranks, group = 1;
  for (const LevelOptions& level : levels) {
    int64_t size = std::min(level.size, left);
    if (level.size == 0) size = std::max<int64_t>(left / outside, 1);
    if (left % size != 0)
      refuse(
          fmt::format("{} ranks do not fill whole groups of level {} ({} ranks each); the "
                      "nearest valid number of ranks is {}",
                      ranks, level.name, group * size, nearest_multiples(ranks, group * size)));
    sizes.push_back(size);
    left /= size;
    group *= size;
  }
  return sizes;
}

int64_t ranks_here(const MeasuredRates& measured, int64_t ranks) {
  return measured.ranks_per_machine > 0 ? measured.ranks_per_machine : ranks;
}

/// The rates that were measured; the others stay. More ranks than cores take turns on them.
void use_measured(const MeasuredRates& measured, int64_t ranks, Cluster& cluster) {
  const std::pair<double, double*> rates[] = {
      {measured.flops_per_second_fp32, &cluster.flops_per_second_fp32},
      {measured.flops_per_second_fp64, &cluster.flops_per_second_fp64},
      {measured.flops_per_second_bf16, &cluster.flops_per_second_bf16},
      {measured.model_flops_per_second_fp32, &cluster.model_flops_per_second_fp32},
      {measured.model_flops_per_second_bf16, &cluster.model_flops_per_second_bf16},
      {measured.attention_flops_per_second_fp32, &cluster.attention_flops_per_second_fp32},
      {measured.attention_flops_per_second_fp64, &cluster.attention_flops_per_second_fp64},
      {measured.attention_flops_per_second_bf16, &cluster.attention_flops_per_second_bf16},
      {measured.weights_per_second_fp32, &cluster.weights_per_second_fp32},
      {measured.weights_per_second_bf16, &cluster.weights_per_second_bf16},
      {measured.library_flops_per_second, &cluster.library_flops_per_second},
      {measured.library_activations_per_second, &cluster.library_activations_per_second},
      {measured.library_calls_per_second, &cluster.library_calls_per_second},
      {measured.memory_bytes_per_second, &cluster.memory_bytes_per_second}};
  for (const auto& [rate, target] : rates)
    if (rate > 0) *target = rate;
  cluster.cores_per_rank = measured.cores_per_rank;
  cluster.rates_source = "measured on this machine";
  const int64_t here = ranks_here(measured, ranks);
  if (measured.cores_per_machine == 0 || here <= measured.cores_per_machine) return;
  cluster.ranks_per_machine = here;
  cluster.cores_per_machine = measured.cores_per_machine;
  cluster.cores_per_rank = 1;
  cluster.scale_compute(cluster.cores_of_rank(1) / static_cast<double>(measured.cores_per_rank));
}

}  // namespace

int64_t Cluster::group_size(int64_t level) const {
  int64_t size = 1;
  for (int64_t i = 0; i <= level; ++i) size *= levels.at(static_cast<size_t>(i)).size;
  return size;
}

int64_t Cluster::level_between(int64_t a, int64_t b) const {
  int64_t group = 1;
  for (size_t level = 0; level < levels.size(); ++level) {
    group *= levels[level].size;
    if (a / group == b / group) return static_cast<int64_t>(level);
  }
  throw InternalError(
      fmt::format("ranks {} and {} share no level of a cluster of {} ranks", a, b, ranks));
}

double Cluster::block_seconds(Dtype dtype, double flops, double attention_flops,
                              double weights) const {
  const double products = flops - attention_flops;
  double seconds = weight_seconds(dtype, weights);
  if (products > 0) seconds += products / model_flops_per_second(dtype);
  if (attention_flops > 0) seconds += attention_flops / attention_flops_per_second(dtype);
  return seconds;
}

double Cluster::library_seconds(Dtype dtype, double flops, const LibraryWork& work) const {
  const auto at = [](double amount, double rate) { return rate > 0 ? amount / rate : 0.0; };
  const double products =
      library_flops_per_second > 0 ? library_flops_per_second : model_flops_per_second(dtype);
  return at(flops, products) + at(work.passed_bytes, memory_bytes_per_second) +
         at(work.activations, library_activations_per_second) +
         at(work.calls, library_calls_per_second);
}

void Cluster::scale_compute(double factor) {
  for (double* rate :
       {&flops_per_second_fp32, &flops_per_second_fp64, &flops_per_second_bf16,
        &model_flops_per_second_fp32, &model_flops_per_second_bf16,
        &attention_flops_per_second_fp32, &attention_flops_per_second_fp64,
        &attention_flops_per_second_bf16, &weights_per_second_fp32, &weights_per_second_bf16,
        &library_flops_per_second, &library_activations_per_second})
    *rate *= factor;
  library_calls_per_second *= std::min(1.0, factor);  // begun by one thread, whatever its team
}

double Cluster::cores_of_rank(int64_t threads) const {
  const double all = static_cast<double>(threads);
  if (cores_per_machine == 0) return all;
  return std::min(all,
                  static_cast<double>(cores_per_machine) / static_cast<double>(ranks_per_machine));
}

Cluster make_cluster(const ClusterOptions& options, int64_t ranks) {
  if (ranks < 1) throw UserError(fmt::format("{} ranks; the nearest valid number is 1", ranks));
  ensure(options.file.empty(), "make_cluster takes no file: read it with resolve_cluster");
  Cluster cluster =
      options.levels.empty() ? cluster_rates(options.preset) : cluster_rates("localhost");
  if (options.measured && cluster.name == "localhost")
    use_measured(*options.measured, ranks, cluster);
  // Levels that a run file names are those of machines that are not at hand.
  if (options.measured && options.levels.empty() && cluster.name == "localhost" &&
      options.measured->memory_bytes_per_machine > 0)
    cluster.memory_bytes =
        options.measured->memory_bytes_per_machine / ranks_here(*options.measured, ranks);
  cluster.links_source = "preset " + cluster.name;
  if (!options.levels.empty()) {
    cluster.name = "levels";
    cluster.links_source = "cluster.levels";
  }
  const std::vector<LevelOptions> levels =
      options.levels.empty() ? preset_levels(options.preset) : options.levels;
  check_levels(levels);
  const std::vector<int64_t> sizes = lay_sizes(levels, ranks);
  for (size_t i = 0; i < levels.size(); ++i)
    cluster.levels.push_back({levels[i].name, sizes[i], levels[i].gb_per_second * kGiga,
                              levels[i].latency_microseconds * 1e-6, levels[i].links,
                              levels[i].processor_share});
  cluster.ranks = ranks;
  cluster.compute_share = options.compute_share;
  return cluster;
}

std::string source_text(const Cluster& cluster) {
  if (cluster.rates_source == cluster.links_source) return cluster.rates_source;
  return fmt::format(
      "rates {}, links of {}",
      cluster.rates_are_assumed() ? "of " + cluster.rates_source : cluster.rates_source,
      cluster.links_source);
}

std::string figures_text(const Cluster& cluster) {
  std::string text = source_text(cluster);
  if (!cluster.rates_are_assumed() || cluster.rates_source == "preset localhost") return text;
  if (cluster.compute_share < 1)
    return text + fmt::format(", {} of its peak rates", cluster.compute_share);
  return text +
         ": peak rates of data sheets, of which published runs reach 22 to 57 % "
         "(cluster.compute_share)";
}

std::string prediction_note(const Cluster& cluster) {
  return cluster.rates_are_assumed() ? " by " + cluster.rates_source : "";
}

std::vector<std::string> level_names(const Cluster& cluster) {
  std::vector<std::string> names;
  for (const Level& level : cluster.levels) names.push_back(level.name);
  return names;
}

}  // namespace strait
