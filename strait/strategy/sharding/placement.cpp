#include "strait/strategy/sharding/placement.h"

#include "strait/config/check_chain.h"
#include "strait/strategy/sharding/layer_codecs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "strait/base/errors.h"
#include "strait/config/check_mesh.h"
#include "strait/config/keys.h"

namespace strait::strategy {
namespace {

ErrorPlace place_of(const Run& run, const std::string& key) {
  ErrorPlace place;
  place.key = key;
  const auto found = run.written.find(key);
  if (found != run.written.end()) {
    place.file = found->second.file;
    if (found->second.line > 0) place.line = found->second.line;
  }
  return place;
}

int64_t smallest_prime_factor(int64_t n) {
  for (int64_t p = 2; p * p <= n; ++p)
    if (n % p == 0) return p;
  return n;
}

/// "2 x 4 ranks, then 3 replicas"
std::string hops_text(const Placement& p) {
  std::string text;
  for (const int64_t hop : p.hops) text += (text.empty() ? "" : " x ") + std::to_string(hop);
  if (p.replicas() > 1)
    text += fmt::format("{}{} replicas", text.empty() ? "" : ", then ", p.replicas());
  return text;
}

/// Ranks of the default inner group: see resolve_placement.
int64_t default_group(const Cluster& cluster, int64_t ranks) {
  const int64_t inner = cluster.group_size(0);
  if (inner > 1 && inner < ranks && ranks % inner == 0) return inner;
  return smallest_prime_factor(ranks);
}

std::string divisors(int64_t ranks) {
  std::string text;
  for (int64_t d = 1; d <= ranks; ++d)
    if (ranks % d == 0) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return text;
}

/// Ranks of the innermost level or of the one below the outermost; 0 when that is no part of the
/// ranks.
int64_t preset_level_ranks(const Cluster& cluster, int64_t ranks, bool innermost) {
  const int64_t outermost = static_cast<int64_t>(cluster.levels.size()) - 1;
  if (outermost == 0) return 0;
  const int64_t span = cluster.group_size(innermost ? 0 : outermost - 1);
  return span > 1 && span < ranks && ranks % span == 0 ? span : 0;
}

class SpanReader {
 public:
  SpanReader(const Run& run, const Cluster& cluster, int64_t ranks)
      : run_(run), cluster_(cluster), ranks_(ranks) {}

  /// Span in ranks of `key`: what the user wrote, else what the preset says.
  int64_t read(const std::string& key, const std::string& written, const char* preset) const {
    const std::string name = "placement.spans." + key;
    const std::string text = run_.is_set(name) ? written : preset;
    if (text == "none") return 1;
    if (text == "world") return ranks_;
    if (text == "group")
      return run_.mesh.axes.z > 1 ? run_.mesh.axes.z : default_group(cluster_, ranks_);
    if (text == "inner" || text == "node") return preset_level(name, text == "inner");
    int64_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size()) value = level_span(name, text);
    if (value < 1 || ranks_ % value != 0)
      throw UserError(fmt::format("{} = {} does not divide the {} data ranks; valid: {}", name,
                                  text, ranks_, divisors(ranks_)),
                      place_of(run_, name));
    return value;
  }

 private:
  /// Presets that follow the levels need one below the outermost.
  int64_t preset_level(const std::string& key, bool innermost) const {
    const int64_t span = preset_level_ranks(cluster_, ranks_, innermost);
    if (span > 0) return span;
    if (run_.is_set(key))
      throw UserError(
          fmt::format("{} = \"{}\" is no level of the {} data ranks on cluster {}; valid: {}", key,
                      innermost ? "inner" : "node", ranks_, cluster_.name, divisors(ranks_)),
          place_of(run_, key));
    throw UserError(
        fmt::format(
            "placement.preset = \"{}\" needs a cluster with a level of several ranks inside "
            "the outermost one, and {} data ranks on cluster {} have none; nearest: \"zero3\", "
            "or write cluster.levels or {}",
            run_.placement.preset, ranks_, cluster_.name, key),
        place_of(run_, "placement.preset"));
  }

  int64_t level_span(const std::string& key, const std::string& text) const {
    std::vector<std::string> names = {"none", "world"};
    for (size_t level = 0; level < cluster_.levels.size(); ++level) {
      names.push_back(cluster_.levels[level].name);
      if (text == names.back())
        return std::min(cluster_.group_size(static_cast<int64_t>(level)), ranks_);
    }
    throw UserError(fmt::format("{} = \"{}\" is no level of cluster {}; nearest: \"{}\"", key, text,
                                cluster_.name, nearest_choice(text, names)),
                    place_of(run_, key));
  }
  const Run& run_;
  const Cluster& cluster_;
  int64_t ranks_;
};

/// The depth of the grid is the span of everything, or it would do nothing.
void check_depth(const Run& run, const Placement& p) {
  const int64_t z = run.mesh.axes.z;
  if (z == 1 || (p.weights == z && p.gradients == z && p.optimizer == z)) return;
  throw UserError(
      fmt::format("mesh.axes.z = {} shards weights, gradients and optimizer over z, but "
                  "placement.preset = \"{}\" gives them spans of {}, {} and {} ranks; nearest: "
                  "placement.preset = \"hsdp\", or mesh.axes.z = 1",
                  z, run.placement.preset, p.weights, p.gradients, p.optimizer),
      place_of(run, "mesh.axes.z"));
}

void check_nesting(const Run& run, const Placement& p) {
  const auto divides = [&](const char* inner, int64_t small, const char* outer, int64_t large) {
    if (large % small == 0) return;
    int64_t nearest = 1;
    for (int64_t d = 1; d <= large; ++d)
      if (large % d == 0 && std::abs(d - small) < std::abs(nearest - small)) nearest = d;
    throw UserError(
        fmt::format(
            "placement.spans.{} ({} ranks) must divide the span of {} ({} ranks): shards of "
            "{} lie inside shards of {}; nearest: {}",
            inner, small, outer, large, outer, inner, nearest),
        place_of(run, std::string("placement.spans.") + inner));
  };
  divides("weights", p.weights, "gradients", p.gradients);
  divides("gradients", p.gradients, "optimizer", p.optimizer);
}

/// Codec of weights. Only what is summed up over steps can make up for an error later.
codec::CodecSpec parse_without_feedback(const Run& run, const std::string& key,
                                        const std::string& text) {
  const codec::CodecSpec spec = codec::parse_codec(text, key);
  if (codec::is_of_layers(spec))
    throw UserError(fmt::format("{} = \"{}\" cannot take effect: weights are sent whole; "
                                "nearest: \"qsgd1\"",
                                key, text),
                    place_of(run, key));
  if (!spec.error_feedback && !spec.stochastic) return spec;
  codec::CodecSpec plain = spec;
  plain.error_feedback = plain.stochastic = false;
  throw UserError(
      fmt::format("{} = \"{}\" cannot take effect: weights are sent whole, not as changes "
                  "that an error could be added to; nearest: \"{}\"",
                  key, text, codec::print_codec(plain)),
      place_of(run, key));
}

/// 16-bit types compute on weights that are sent in them unless a codec makes them smaller still.
bool computes_narrow(const Run& run) {
  return run.train.precision == "bf16" || run.train.precision == "fp16";
}
std::string or_narrow(const Run& run, const std::string& codec) {
  return computes_narrow(run) && codec == "none" ? run.train.precision : codec;
}

/// `is_computed_on`: of what blocks compute on, so that "none" means nothing smaller than that.
codec::CodecSpec read_codec(const Run& run, const std::string& key, const std::string& written,
                            const char* preset, bool is_computed_on = false) {
  const std::string name = "placement.codecs." + key;
  const std::string text = run.is_set(name) ? written : preset;
  return parse_without_feedback(run, name, is_computed_on ? or_narrow(run, text) : text);
}

/// Ranks of x or y would round what all of them hold each in its own way.
void refuse_drawn_on_shared(const Run& run, const std::string& key, codec::CodecSpec spec) {
  if (!spec.stochastic || (run.mesh.axes.x == 1 && run.mesh.axes.y == 1)) return;
  const std::string drawn = codec::print_codec(spec);
  spec.stochastic = false;
  throw UserError(
      fmt::format("{} = [\"{}\"] cannot take effect with mesh.axes.x = {} and y = {}: "
                  "roundings are drawn by each rank, and these hold some parameters "
                  "together; nearest: [\"{}\"]",
                  key, drawn, run.mesh.axes.x, run.mesh.axes.y, codec::print_codec(spec)),
      place_of(run, key));
}

/// Gradients: one codec for all hops, or one for each.
void read_gradient_codecs(const Run& run, const Cluster& cluster, const PlacementRow& row,
                          Placement& p) {
  const std::string key = "placement.codecs.gradients";
  // A written compression.codec goes before what the precision fills in.
  const bool of_layers = run.compression.codec != "none";
  std::vector<std::string> texts = {of_layers ? row.gradients_codec
                                              : or_narrow(run, row.gradients_codec)};
  if (run.is_set(key)) texts = run.placement.codecs.gradients;
  if (texts.empty()) texts = {"none"};
  std::vector<codec::CodecSpec> specs;
  for (const std::string& text : texts) {
    specs.push_back(codec::parse_codec(text, key));
    if (codec::is_of_layers(specs.back()))
      throw UserError(fmt::format("{} = [\"{}\"] cannot take effect: it is one of codecs chosen "
                                  "layer by layer; nearest: compression.codec = \"{}\" with "
                                  "placement.preset = \"ddp\"",
                                  key, text, text),
                      place_of(run, key));
    refuse_drawn_on_shared(run, key, specs.back());
  }
  std::vector<int64_t> borders;
  const bool coded = std::any_of(specs.begin(), specs.end(), [](const codec::CodecSpec& spec) {
    return spec.kind != codec::CodecKind::kNone;
  });
  // Pieces cannot be summed on their way: with a codec every level is a hop, whose sums are encoded
  // anew.
  for (size_t level = 0; coded && level < cluster.levels.size(); ++level)
    borders.push_back(cluster.group_size(static_cast<int64_t>(level)));
  p.set_hops(borders);
  const size_t wanted = p.codecs.gradients.size();
  if (specs.size() == 1) specs.resize(wanted, specs.front());
  if (specs.size() != wanted)
    throw UserError(
        fmt::format("{} lists {} codecs for {} hop{} (ranks: {}); nearest: one for all, or {}", key,
                    specs.size(), wanted, wanted == 1 ? "" : "s", hops_text(p), wanted),
        place_of(run, key));
  p.codecs.gradients = std::move(specs);
}

void check_codecs(const Run& run, const Placement& p) {
  const auto refuse = [&](const char* key, const codec::CodecSpec& spec, const std::string& why) {
    throw UserError(
        fmt::format("placement.codecs.{} = \"{}\" cannot take effect: {}; nearest: \"none\"", key,
                    codec::print_codec(spec), why),
        place_of(run, std::string("placement.codecs.") + key));
  };
  const auto is_set = [](const codec::CodecSpec& spec) {
    return spec.kind != codec::CodecKind::kNone;
  };
  const bool narrow = computes_narrow(run);
  const bool own_master = p.weights == p.optimizer && p.weights > 1;
  if (is_set(p.codecs.update) && p.weights == p.optimizer && !(narrow && !own_master))
    refuse("update", p.codecs.update,
           "weights and optimizer have the same span, so updates are not sent");
  const auto check_range = [&](const char* key, const codec::CodecSpec& spec) {
    if (beyond_range(run, spec))
      throw UserError(fmt::format("placement.codecs.{} = \"{}\" cannot take effect: only "
                                  "train.precision = \"fp16\" scales values into its range; "
                                  "nearest: \"bf16\"",
                                  key, codec::print_codec(spec)),
                      place_of(run, std::string("placement.codecs.") + key));
  };
  check_range("weights", p.codecs.weights);
  check_range("secondary", p.codecs.secondary);
  check_range("update", p.codecs.update);
  for (const codec::CodecSpec& spec : p.codecs.gradients) check_range("gradients", spec);
  if (is_set(p.codecs.weights) && p.weights == 1)
    refuse("weights", p.codecs.weights,
           "weights are whole on every rank, so they are not gathered");
  if (is_set(p.codecs.weights) && is_set(p.codecs.update) && p.codecs.weights != p.codecs.update)
    refuse("weights", p.codecs.weights,
           fmt::format("weights are kept and sent in the update's codec, {}",
                       codec::print_codec(p.codecs.update)));
  if (is_set(p.codecs.secondary) && p.secondary == 1)
    refuse("secondary", p.codecs.secondary, "there is no secondary copy");
}

void check_secondary(const Run& run, const Placement& p) {
  const bool coded = p.codecs.secondary.kind != codec::CodecKind::kNone;
  if (p.secondary == 1 || (p.weights > 1 && (coded || p.secondary < p.weights))) return;
  throw UserError(
      fmt::format("placement.spans.secondary ({} ranks) cannot take effect: {}; nearest: \"none\"",
                  p.secondary,
                  p.weights == 1
                      ? std::string("weights are whole on every rank")
                      : fmt::format("weights are gathered from {} ranks anyway", p.weights)),
      place_of(run, "placement.spans.secondary"));
}

/// Units that are gathered ahead of their use. On one data rank the key is idle, so that a run file
/// for many ranks also runs on one.
int64_t units_ahead(const Run& run, const Placement& p) {
  const int64_t units = run.placement.prefetch_units, usual = PlacementOptions().prefetch_units;
  const bool ahead = run.tensor.overlaps("oag");
  const auto refuse = [&](const std::string& why, const std::string& nearest) {
    throw UserError(fmt::format("placement.prefetch_units = {} cannot take effect where {}; "
                                "nearest: {}",
                                units, why, nearest),
                    place_of(run, "placement.prefetch_units"));
  };
  if (units == usual || !run.is_set("placement.prefetch_units")) return ahead ? units : 0;
  if (!ahead && units > 0) refuse("tensor.overlap lacks \"oag\"", "0");
  if (ahead && p.weights == 1 && p.ranks > 1)
    refuse("weights are whole on every rank",
           fmt::format("{}, or placement.preset = \"zero3\"", usual));
  return units;
}

/// A word that is left out has to make something wait. That "oar" stands where nothing is summed
/// over x and y is validated before.
void check_overlaps(const Run& run, const Placement& p) {
  const bool reduces = p.ranks > 1 || run.mesh.axes.stage > 1, gathers = p.weights > 1;
  const bool lacks_reductions = !run.tensor.overlaps("ors");
  const bool lacks_gathers = !run.tensor.overlaps("oag");
  if (!run.tensor.overlaps("oar") || (!lacks_reductions && !lacks_gathers)) return;
  if ((lacks_reductions && reduces) || (lacks_gathers && gathers)) return;
  const char* const why = !lacks_gathers      ? "no gradients are reduced"
                          : !lacks_reductions ? "no weights are gathered"
                                              : "no gradients are reduced and no weights gathered";
  throw UserError(fmt::format("tensor.overlap = {} cannot take effect where {}; nearest: {}",
                              value_text(*find_key("tensor.overlap"), run), why,
                              value_text(*find_key("tensor.overlap"), Run())),
                  place_of(run, "tensor.overlap"));
}

/// What computing goes on beside.
void read_overlaps(const Run& run, Placement& p) {
  check_overlaps(run, p);
  p.prefetch_units = units_ahead(run, p);
  p.hides_reductions = run.tensor.overlaps("ors");
  p.cached_layers = run.tensor.cached_gathers;
  const int64_t blocks = middle_blocks(run);
  if (p.cached_layers > 0 && p.weights == 1)
    throw UserError(fmt::format("tensor.cached_gathers = {} cannot take effect with "
                                "placement.preset = \"{}\": weights are whole on every rank; "
                                "nearest: 0, or placement.preset = \"zero3\"",
                                p.cached_layers, run.placement.preset),
                    place_of(run, "tensor.cached_gathers"));
  if (p.cached_layers > blocks)
    throw UserError(fmt::format("tensor.cached_gathers = {} of {} {}; nearest: {}", p.cached_layers,
                                blocks, middle_blocks_name(run), blocks),
                    place_of(run, "tensor.cached_gathers"));
}

bool across_every_micro_step(const Run& run, const Placement& p, const PlacementRow& row) {
  const bool written = run.is_set("placement.reduce_every");
  const std::string every = written ? run.placement.reduce_every : row.reduce_every;
  const bool takes_effect = p.gradients > 1 && p.gradients == p.optimizer && p.replicas() > 1;
  if (written && every == "step" && !takes_effect && std::string(row.reduce_every) != "step")
    throw UserError(
        fmt::format(
            "placement.reduce_every = \"step\" cannot take effect: gradients split over all {} "
            "ranks are reduced every micro-step; nearest: \"micro-step\", or preset \"mics\"",
            p.ranks),
        place_of(run, "placement.reduce_every"));
  return takes_effect && every == "micro-step";
}

}  // namespace

const std::vector<PlacementRow>& placement_table() {
  static const std::vector<PlacementRow> rows = {
      // name    weights   secondary gradients  optimizer  reduced across  codecs: weights,
      // gradients, update
      {"ddp", "none", "none", "none", "none", "step", "none", "none", "none"},
      {"zero1", "none", "none", "none", "world", "step", "none", "none", "none"},
      {"zero2", "none", "none", "world", "world", "micro-step", "none", "none", "none"},
      {"zero3", "world", "none", "world", "world", "micro-step", "none", "none", "none"},
      {"hsdp", "group", "none", "group", "group", "micro-step", "none", "none", "none"},
      {"mics", "group", "none", "group", "group", "step", "none", "none", "none"},
      {"zero++", "world", "node", "world", "world", "micro-step", "int8/2048", "int4/128", "none"},
      {"zero-topo", "inner", "none", "node", "world", "step", "none", "int4/128", "int8/2048"},
  };
  return rows;
}

bool is_applicable(const PlacementRow& row, const Cluster& cluster, int64_t ranks) {
  for (const std::string span : {row.weights, row.secondary, row.gradients, row.optimizer}) {
    if (span != "inner" && span != "node") continue;
    if (preset_level_ranks(cluster, ranks, span == "inner") == 0) return false;
  }
  return true;
}

int64_t Placement::hops_in(int64_t span) const {
  int64_t count = 0;
  for (int64_t ranks_inside = 1; ranks_inside < span; ++count) ranks_inside *= hops.at(count);
  return count;
}

int64_t Placement::span_of(int64_t count) const {
  int64_t span = 1;
  for (int64_t hop = 0; hop < count; ++hop) span *= hops[hop];
  return span;
}

void Placement::set_hops(const std::vector<int64_t>& borders) {
  std::vector<int64_t> all = borders;
  all.insert(all.end(), {weights, gradients, optimizer});
  std::sort(all.begin(), all.end());
  const std::vector<int64_t> spans = {weights, gradients, optimizer};
  hops.clear();
  int64_t inside = 1;
  for (const int64_t border : all) {
    const bool fits = border > inside && optimizer % border == 0 && border % inside == 0 &&
                      std::all_of(spans.begin(), spans.end(), [&](int64_t span) {
                        return span % border == 0 || border % span == 0;
                      });
    if (!fits) continue;
    hops.push_back(border / inside);
    inside = border;
  }
  codecs.gradients.assign(hops.size() + (replicas() > 1 ? 1 : 0), {});
}

std::string Placement::describe() const {
  const auto part = [](const char* what, int64_t span) {
    return span == 1 ? fmt::format("{} whole", what) : fmt::format("{} / {}", what, span);
  };
  std::string text = part("weights", weights) + ", " + part("gradients", gradients) + ", " +
                     part("optimizer", optimizer);
  if (secondary > 1) text += fmt::format(", secondary / {}", secondary);
  if (replicas() > 1 && optimizer > 1)
    text += fmt::format("; {} groups, all-reduced every {}", replicas(),
                        across_every_micro_step ? "micro-step" : "step");
  const auto add_codec = [&](const char* what, const codec::CodecSpec& spec) {
    if (spec.kind != codec::CodecKind::kNone)
      text += fmt::format("; {} {}", what, codec::print_codec(spec));
  };
  add_codec("weights in", codecs.weights);
  add_codec("secondary in", codecs.secondary);
  add_codec("updates in", codecs.update);
  const auto& hop_codecs = codecs.gradients;
  const bool equal =
      std::all_of(hop_codecs.begin(), hop_codecs.end(),
                  [&](const codec::CodecSpec& spec) { return spec == hop_codecs[0]; });
  for (size_t hop = 0; hop < (equal && !hop_codecs.empty() ? 1 : hop_codecs.size()); ++hop)
    add_codec(equal ? "gradients in" : fmt::format("hop {} of gradients in", hop).c_str(),
              hop_codecs[hop]);
  return text;
}

Placement resolve_placement(const Run& run, const Cluster& cluster, int64_t ranks) {
  const PlacementRow* row = nullptr;
  std::vector<std::string> names;
  for (const PlacementRow& candidate : placement_table()) {
    names.push_back(candidate.name);
    if (run.placement.preset == candidate.name) row = &candidate;
  }
  if (row == nullptr)
    throw UserError(fmt::format("placement.preset = \"{}\" is not available; nearest: \"{}\"",
                                run.placement.preset, nearest_choice(run.placement.preset, names)),
                    place_of(run, "placement.preset"));
  const SpanReader reader(run, cluster, ranks);
  Placement placement;
  placement.preset = row->name;
  placement.ranks = ranks;
  placement.weights = reader.read("weights", run.placement.spans.weights, row->weights);
  placement.gradients = reader.read("gradients", run.placement.spans.gradients, row->gradients);
  placement.optimizer = reader.read("optimizer", run.placement.spans.optimizer, row->optimizer);
  placement.secondary = reader.read("secondary", run.placement.spans.secondary, row->secondary);
  read_overlaps(run, placement);
  check_nesting(run, placement);
  check_depth(run, placement);
  const auto& codecs = run.placement.codecs;
  const bool own_master = placement.weights == placement.optimizer && placement.weights > 1;
  placement.codecs.weights =
      read_codec(run, "weights", codecs.weights, row->weights_codec, own_master);
  placement.codecs.secondary = read_codec(run, "secondary", codecs.secondary, "none");
  placement.codecs.update =
      read_codec(run, "update", codecs.update, row->update_codec, !own_master);
  read_gradient_codecs(run, cluster, *row, placement);
  read_compression(run, placement);
  check_codecs(run, placement);
  check_secondary(run, placement);
  placement.across_every_micro_step = across_every_micro_step(run, placement, *row);
  return placement;
}

}  // namespace strait::strategy
