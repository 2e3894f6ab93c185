#include "strait/checkpoint/inspect.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "strait/base/errors.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/manifest.h"
#include "strait/checkpoint/reader.h"
#include "strait/checkpoint/retention.h"

namespace strait::checkpoint {
namespace {

Json files_json(const Manifest& manifest, const std::string& folder) {
  Json files = Json::array();
  for (const auto& [file, problem] : check_files(manifest, folder, true))
    files.push_back(Json::object({{"name", file.name},
                                  {"bytes", file.bytes},
                                  {"hash", file.hash},
                                  {"ok", problem.empty()}}));
  return files;
}

/// Master shards of each unit, so that a parameter's file is found without going through all
/// shards.
using MasterShards = std::map<std::string, std::vector<const ShardRecord*>>;

bool holds(const StateRange& range, int64_t element) {
  bool found = false;
  for_each_run(runs_of(range), [&](int64_t begin, int64_t, int64_t length) {
    found = found || (begin <= element && element < begin + length);
  });
  return found;
}

Json tensor_json(const ParameterRecord& parameter, const std::vector<const ShardRecord*>& shards) {
  const auto holds_begin = [&](const ShardRecord* shard) {
    return holds(shard->range, parameter.offset);
  };
  const auto shard = std::find_if(shards.begin(), shards.end(), holds_begin);
  const bool found = shard != shards.end();
  return Json::object({{"name", parameter.name},
                       {"dtype", found ? Json(dtype_name((*shard)->range.dtype)) : Json()},
                       {"shape", parameter.dims},
                       {"file", found ? Json((*shard)->file) : Json()}});
}

Json tensors_json(const Manifest& manifest) {
  MasterShards shards;
  for (const ShardRecord& shard : manifest.shards)
    if (shard.range.state == kMaster) shards[shard.range.unit].push_back(&shard);
  Json tensors = Json::array();
  for (const UnitRecord& unit : manifest.units)
    for (const ParameterRecord& parameter : unit.parameters)
      tensors.push_back(tensor_json(parameter, shards[unit.name]));
  return tensors;
}

/// What the shards of a state hold together.
struct StateSum {
  Dtype dtype = Dtype::kFloat32;
  int64_t shards = 0, elements = 0;
  std::set<int64_t> senders;
};

Json states_json(const Manifest& manifest) {
  std::map<std::string, StateSum> states;
  for (const auto& [range, file] : manifest.shards) {
    StateSum& sum = states[range.state];
    sum.dtype = range.dtype;
    ++sum.shards;
    sum.elements += range.elements();
    if (range.sender != kNoSender) sum.senders.insert(range.sender);
  }
  Json json = Json::array();
  for (const auto& [name, sum] : states)
    json.push_back(Json::object({{"name", name},
                                 {"dtype", dtype_name(sum.dtype)},
                                 {"elements", sum.elements},
                                 {"bytes", sum.elements * dtype_bytes(sum.dtype)},
                                 {"shards", sum.shards},
                                 {"senders", static_cast<int64_t>(sum.senders.size())}}));
  return json;
}

/// As the manifest says; else of what its undamaged files hold.
Json parameter_hash_json(const Manifest& manifest, const std::string& folder, const Json& files) {
  if (manifest.parameter_hash) return *manifest.parameter_hash;
  for (const Json& file : files.as_array())
    if (!file.at("ok").as_bool()) return {};
  if (!is_complete(folder)) return {};
  try {
    return stored_parameter_hash(CheckpointReader(folder));
  } catch (const UserError&) {  // some weights are not among the states
    return {};
  }
}

}  // namespace

Json inspect(const std::string& path) {
  const std::string folder = resolve_checkpoint(path);
  const Manifest manifest = read_manifest(folder);
  const Json files = files_json(manifest, folder);
  const std::optional<double> loss = validation_loss_of(manifest);
  return Json::object({{"path", folder},
                       {"complete", is_complete(folder)},
                       {"step", manifest.step},
                       {"tokens", manifest.tokens},
                       {"ranks", manifest.ranks},
                       {"placement", manifest.placement},
                       {"mesh", manifest.mesh},
                       {"model", manifest.model},
                       {"parameters", manifest.parameters},
                       {"parameter_hash", parameter_hash_json(manifest, folder, files)},
                       {"validation_loss", loss ? Json(*loss) : Json()},
                       {"files", files},
                       {"tensors", tensors_json(manifest)},
                       {"states", states_json(manifest)}});
}

}  // namespace strait::checkpoint
