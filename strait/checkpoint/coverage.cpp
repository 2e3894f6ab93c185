// Checks of manifest.h on the ranges that a manifest names.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "strait/base/errors.h"
#include "strait/checkpoint/manifest.h"

namespace strait::checkpoint {
namespace {

/// What shards must not share an element of.
using StateKey = std::tuple<int64_t, std::string, std::string, int64_t>;

StateKey key_of(const StateRange& range) {
  return {range.replica, range.unit, range.state, range.sender};
}

/// A single run of a shard.
struct Held {
  int64_t begin = 0, end = 0;
  const ShardRecord* shard = nullptr;
};

/// Shards by address.
std::map<StateKey, std::vector<const ShardRecord*>> shards_by_key(const Manifest& manifest) {
  std::map<StateKey, std::vector<const ShardRecord*>> groups;
  for (const ShardRecord& shard : manifest.shards)
    if (shard.range.elements() > 0) groups[key_of(shard.range)].push_back(&shard);
  return groups;
}

/// Every single run of the shards, in the order of the elements.
std::vector<Held> sorted_runs(const std::vector<const ShardRecord*>& shards) {
  std::vector<Held> held;
  for (const ShardRecord* shard : shards)
    for_each_run(runs_of(shard->range), [&](int64_t begin, int64_t, int64_t length) {
      held.push_back({begin, begin + length, shard});
    });
  std::sort(held.begin(), held.end(),
            [](const Held& a, const Held& b) { return a.begin < b.begin; });
  return held;
}

/// "unit blocks.0", or "the run".
std::string owner_of(const StateRange& range) {
  return range.unit.empty() ? "the run" : "unit " + range.unit;
}

void check_no_overlap(const std::vector<Held>& held) {
  for (size_t i = 1; i < held.size(); ++i)
    if (held[i].begin < held[i - 1].end)
      throw UserError(fmt::format(
          "shards {} of {} and {} of {} overlap", shard_tensor_name(held[i - 1].shard->range),
          held[i - 1].shard->file, shard_tensor_name(held[i].shard->range), held[i].shard->file));
}

std::string join_dims(const std::vector<int64_t>& dims) {
  std::string text;
  for (const int64_t dim : dims) text += fmt::format("{}{}", text.empty() ? "" : "x", dim);
  return text.empty() ? "scalar" : text;
}

/// First difference between two units of the same name, "" when equal.
std::string difference(const UnitRecord& saved, const UnitRecord& wanted) {
  if (saved.elements != wanted.elements)
    return fmt::format("unit {} has {} elements in the checkpoint, {} in the model of the run",
                       saved.name, saved.elements, wanted.elements);
  if (saved.parameters.size() != wanted.parameters.size())
    return fmt::format("unit {} has {} parameters in the checkpoint, {} in the model of the run",
                       saved.name, saved.parameters.size(), wanted.parameters.size());
  for (size_t i = 0; i < saved.parameters.size(); ++i) {
    const ParameterRecord &a = saved.parameters[i], &b = wanted.parameters[i];
    if (a.name != b.name || a.dims != b.dims || a.offset != b.offset)
      return fmt::format(
          "unit {} holds {} ({}) at element {} in the checkpoint, {} ({}) at element {} "
          "in the model of the run",
          saved.name, a.name, join_dims(a.dims), a.offset, b.name, join_dims(b.dims), b.offset);
  }
  return "";
}

std::string first_difference(const Manifest& manifest, const std::vector<UnitRecord>& units) {
  for (const UnitRecord& wanted : units) {
    const UnitRecord* saved = manifest.unit(wanted.name);
    if (saved == nullptr) return fmt::format("the checkpoint has no unit {}", wanted.name);
    if (std::string found = difference(*saved, wanted); !found.empty()) return found;
  }
  for (const UnitRecord& saved : manifest.units)
    if (std::none_of(units.begin(), units.end(),
                     [&](const auto& u) { return u.name == saved.name; }))
      return fmt::format("the model of the run has no unit {}", saved.name);
  return "";
}

int64_t total_elements(const std::vector<UnitRecord>& units) {
  int64_t sum = 0;
  for (const UnitRecord& unit : units) sum += unit.elements;
  return sum;
}

template <class Records>
std::set<std::string> unique_names(const Records& records, const char* what) {
  std::set<std::string> names;
  for (const auto& record : records)
    if (!names.insert(record.name).second)
      throw UserError(fmt::format("the {} {} stands twice", what, record.name));
  return names;
}

void check_shard(const Manifest& manifest, const std::set<std::string>& files,
                 const ShardRecord& shard) {
  const std::string name = shard_tensor_name(shard.range);
  if (!files.contains(shard.file))
    throw UserError(fmt::format("shard {} lies in {}, which is not listed", name, shard.file));
  const auto elements = manifest.elements_of(shard.range);
  if (!elements) throw UserError(fmt::format("shard {} is of no listed unit", name));
  if (shard.range.begin < 0 || shard.range.begin > shard.range.end || shard.range.end > *elements)
    throw UserError(
        fmt::format("shard {} reaches beyond the {} elements of its unit", name, *elements));
  if (shard.range.runs.empty()) return;
  const StateRange bounds = with_runs(shard.range, shard.range.runs);
  if (bounds.begin != shard.range.begin || bounds.end != shard.range.end)
    throw UserError(fmt::format("shard {} has runs from {} to {}", name, bounds.begin, bounds.end));
}

[[noreturn]] void refuse_gap(const StateRange& range, int64_t begin, int64_t end,
                             const std::string& path) {
  ErrorPlace place;
  place.file = path;
  throw UserError(fmt::format("{}: no rank's file holds elements [{}, {}) of {} of {}", path, begin,
                              end, range.state, owner_of(range)),
                  place);
}

}  // namespace

void check_shards(const Manifest& manifest) {
  const std::set<std::string> files = unique_names(manifest.files, "file");
  unique_names(manifest.units, "unit");
  unique_names(manifest.values, "value");
  for (const ShardRecord& shard : manifest.shards) check_shard(manifest, files, shard);
  for (const auto& [key, shards] : shards_by_key(manifest)) check_no_overlap(sorted_runs(shards));
}

void require_full_coverage(const Manifest& manifest, const std::string& path) {
  for (const auto& [key, shards] : shards_by_key(manifest)) {
    const StateRange& range = shards.front()->range;
    if (range.sender != kNoSender) continue;
    int64_t expected = 0;
    for (const Held& held : sorted_runs(shards)) {
      if (held.begin > expected) refuse_gap(range, expected, held.begin, path);
      expected = held.end;
    }
    const int64_t elements = manifest.elements_of(range).value_or(0);
    if (expected < elements) refuse_gap(range, expected, elements, path);
  }
}

void require_same_units(const Manifest& manifest, const std::vector<UnitRecord>& units,
                        const std::string& path) {
  const std::string found = first_difference(manifest, units);
  if (found.empty()) return;
  ErrorPlace place;
  place.file = path;
  throw UserError(
      fmt::format("{} is a checkpoint of another model: {} (checkpoint: {} elements in {} "
                  "units, model {}; run: {} elements in {} units)",
                  path, found, total_elements(manifest.units), manifest.units.size(),
                  manifest.model.dump(), total_elements(units), units.size()),
      place);
}

}  // namespace strait::checkpoint
