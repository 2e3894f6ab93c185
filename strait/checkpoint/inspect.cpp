#include "strait/checkpoint/inspect.h"

#include <algorithm>
#include <map>
#include <vector>

#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/manifest.h"
#include "strait/checkpoint/reader.h"

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

Json tensor_json(const ParameterRecord& parameter, const std::vector<const ShardRecord*>& shards) {
  const auto holds_begin = [&](const ShardRecord* shard) {
    return shard->range.begin <= parameter.offset && parameter.offset < shard->range.end;
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

}  // namespace

Json inspect(const std::string& path) {
  const std::string folder = resolve_checkpoint(path);
  const Manifest manifest = read_manifest(folder);
  const auto& hash = manifest.parameter_hash;
  return Json::object({{"path", folder},
                       {"complete", is_complete(folder)},
                       {"step", manifest.step},
                       {"tokens", manifest.tokens},
                       {"ranks", manifest.ranks},
                       {"placement", manifest.placement},
                       {"mesh", manifest.mesh},
                       {"model", manifest.model},
                       {"parameters", manifest.parameters},
                       {"parameter_hash", hash ? Json(*hash) : Json()},
                       {"files", files_json(manifest, folder)},
                       {"tensors", tensors_json(manifest)}});
}

}  // namespace strait::checkpoint
