#include "strait/strategy/sharding/placement.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "strait/base/errors.h"

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
    if (text == "group") return default_group(cluster_, ranks_);
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

void check_nesting(const Run& run, const Placement& p) {
  if (p.weights != 1 && p.weights != p.gradients)
    throw UserError(
        fmt::format(
            "placement.spans.weights ({} ranks) must be none or equal to the gradients' span "
            "({} ranks)",
            p.weights, p.gradients),
        place_of(run, "placement.spans.weights"));
  if (p.gradients != 1 && p.gradients != p.optimizer)
    throw UserError(
        fmt::format(
            "placement.spans.gradients ({} ranks) must be none or equal to the optimizer's span "
            "({} ranks)",
            p.gradients, p.optimizer),
        place_of(run, "placement.spans.gradients"));
}

bool across_every_micro_step(const Run& run, const Placement& p, const PlacementRow& row) {
  const bool written = run.is_set("placement.reduce_every");
  const std::string every = written ? run.placement.reduce_every : row.reduce_every;
  const bool takes_effect = p.gradients > 1 && p.replicas() > 1;
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
      // name    weights   gradients  optimizer  beyond the gradients' span
      {"ddp", "none", "none", "none", "step"},
      {"zero1", "none", "none", "world", "step"},
      {"zero2", "none", "world", "world", "micro-step"},
      {"zero3", "world", "world", "world", "micro-step"},
      {"hsdp", "group", "group", "group", "micro-step"},
      {"mics", "group", "group", "group", "step"},
  };
  return rows;
}

std::string Placement::describe() const {
  const auto part = [](const char* what, int64_t span) {
    return span == 1 ? fmt::format("{} whole", what) : fmt::format("{} / {}", what, span);
  };
  std::string text = part("weights", weights) + ", " + part("gradients", gradients) + ", " +
                     part("optimizer", optimizer);
  if (replicas() > 1 && optimizer > 1)
    text += fmt::format("; {} groups, all-reduced every {}", replicas(),
                        across_every_micro_step ? "micro-step" : "step");
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
  placement.prefetch_units = run.placement.prefetch_units;
  check_nesting(run, placement);
  placement.across_every_micro_step = across_every_micro_step(run, placement, *row);
  return placement;
}

}  // namespace strait::strategy
