// Checks of manifest.h on the ranges that a manifest names.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "strait/base/errors.h"
#include "strait/checkpoint/manifest.h"

namespace strait::checkpoint {
namespace {

using ByState = std::map<std::pair<std::string, std::string>, std::vector<const ShardRecord*>>;

/// Shards that are not empty, by unit and state, in the order of their elements.
ByState sorted_shards(const Manifest& manifest) {
  ByState groups;
  for (const ShardRecord& shard : manifest.shards)
    if (shard.range.end > shard.range.begin)
      groups[{shard.range.unit, shard.range.state}].push_back(&shard);
  for (auto& [key, shards] : groups)
    std::sort(shards.begin(), shards.end(),
              [](const auto* a, const auto* b) { return a->range.begin < b->range.begin; });
  return groups;
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

}  // namespace

void check_shards(const Manifest& manifest) {
  const std::set<std::string> files = unique_names(manifest.files, "file");
  unique_names(manifest.units, "unit");
  std::map<std::string, int64_t> elements;
  for (const UnitRecord& unit : manifest.units) elements[unit.name] = unit.elements;
  for (const ShardRecord& shard : manifest.shards) {
    const std::string name = shard_tensor_name(shard.range);
    if (!files.contains(shard.file))
      throw UserError(fmt::format("shard {} lies in {}, which is not listed", name, shard.file));
    const auto unit = elements.find(shard.range.unit);
    if (unit == elements.end()) throw UserError(fmt::format("shard {} is of no listed unit", name));
    if (shard.range.begin < 0 || shard.range.begin > shard.range.end ||
        shard.range.end > unit->second)
      throw UserError(
          fmt::format("shard {} reaches beyond the {} elements of its unit", name, unit->second));
  }
  for (const auto& [key, shards] : sorted_shards(manifest)) {
    for (size_t i = 1; i < shards.size(); ++i)
      if (shards[i]->range.begin < shards[i - 1]->range.end)
        throw UserError(fmt::format("shards {} of {} and {} of {} overlap",
                                    shard_tensor_name(shards[i - 1]->range), shards[i - 1]->file,
                                    shard_tensor_name(shards[i]->range), shards[i]->file));
  }
}

void require_full_coverage(const Manifest& manifest, const std::string& path) {
  const auto gap = [&](const auto& key, int64_t begin, int64_t end) {
    ErrorPlace place;
    place.file = path;
    throw UserError(fmt::format("{}: no rank's file holds elements [{}, {}) of {} of unit {}", path,
                                begin, end, key.second, key.first),
                    place);
  };
  for (const auto& [key, shards] : sorted_shards(manifest)) {
    int64_t expected = 0;
    for (const ShardRecord* shard : shards) {
      if (shard->range.begin > expected) gap(key, expected, shard->range.begin);
      expected = shard->range.end;
    }
    const int64_t elements = manifest.unit(key.first)->elements;
    if (expected < elements) gap(key, expected, elements);
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
