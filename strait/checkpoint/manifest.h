// manifest.json: what a checkpoint holds. Its last line is the hash of all text before it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/checkpoint/state_range.h"
#include "strait/shape/shape.h"

namespace strait::checkpoint {

inline constexpr const char* kManifestFormat = "strait.checkpoint/1";
/// Of a manifest that names what the first format has not: shards of several runs, of senders, of
/// replicas beyond the first, values of the whole run.
inline constexpr const char* kSecondFormat = "strait.checkpoint/2";
inline constexpr const char* kManifestFile = "manifest.json";
struct ParameterRecord {
  std::string name;
  std::vector<int64_t> dims;
  int64_t offset = 0;  // elements from the start of the unit
  int64_t elements() const;
};

struct UnitRecord {
  std::string name;
  int64_t elements = 0;
  std::vector<ParameterRecord> parameters;
};

/// A value of the whole run, as counters.
struct ValueRecord {
  std::string name;  // the state of its shards
  int64_t elements = 0;
};

/// A file of the checkpoint other than the manifest. `name` has no folder.
struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  std::string hash;  // XXH3-128, hexadecimal
};

/// What one rank wrote; travels to the rank that publishes.
struct RankRecord {
  FileRecord file;
  std::vector<ShardRecord> shards;
};
Json rank_record_json(const RankRecord& record);
RankRecord parse_rank_record(const Json& json);

struct Manifest {
  int64_t step = 0;    // optimizer steps done
  int64_t tokens = 0;  // trained on so far
  int64_t ranks = 1;
  Json placement;  // as the caller describes it
  Json mesh = Json::object();
  Json model = Json::object();
  int64_t seed = 0;
  std::string precision;
  int64_t sequences_consumed = 0;  // position of the data, all ranks
  int64_t parameters = 0;
  std::optional<std::string> parameter_hash;
  std::vector<UnitRecord> units;
  std::vector<ValueRecord> values;
  std::vector<ShardRecord> shards;
  std::vector<FileRecord> files;
  Json extra = Json::object();  // the caller's own: losses, counters

  /// Adds a rank's file and shards.
  void add(const RankRecord& record);
  /// Unit by name, or nullptr.
  const UnitRecord* unit(const std::string& name) const;
  /// Elements of the unit of a range, or of its value; nothing when neither is listed.
  std::optional<int64_t> elements_of(const StateRange& range) const;
};

/// The units of a model, to save them or to compare them with a checkpoint's.
std::vector<UnitRecord> unit_records(const ModelShape& model);

/// The manifest's `model`: family, its sizes (of modules the folder) and vocabulary.
Json model_json(const ModelOptions& model, int64_t vocabulary);

/// Text of manifest.json, with its hash.
std::string manifest_text(const Manifest& manifest);

/// Parses and checks the text of a manifest: hash, format, version, every field, and that shards
/// name known units and files, lie inside their units and do not overlap. UserError naming `path`
/// and what is wrong.
Manifest parse_manifest(const std::string& text, const std::string& path);

/// Manifest of the checkpoint folder `folder`. UserError as above, or when it has none.
Manifest read_manifest(const std::string& folder);

/// UserError unless the shards name known units, values and files, lie inside them and do not
/// overlap; shards of several senders may. Cost: O(n log n) for n single runs.
void check_shards(const Manifest& manifest);

/// UserError naming the first gap unless the shards of every state that occurs cover their unit.
/// What senders keep need not.
void require_full_coverage(const Manifest& manifest, const std::string& path);

/// UserError, naming both models, unless the checkpoint at `path` holds exactly `units`: the same
/// names, elements, and parameters with their dims and offsets.
void require_same_units(const Manifest& manifest, const std::vector<UnitRecord>& units,
                        const std::string& path);

}  // namespace strait::checkpoint
