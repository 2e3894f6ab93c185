#include "strait/checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/files/hash.h"
#include "strait/shape/run_overlaps.h"

namespace strait::checkpoint {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  ErrorPlace place;
  place.file = path;
  throw UserError(fmt::format("{}: {}", path, what), place);
}

/// What is wrong with a file's size, "" when right.
std::string size_problem(const FileRecord& record, int64_t bytes) {
  if (bytes == record.bytes) return "";
  return fmt::format("is {} bytes long, the manifest says {}: it {}", bytes, record.bytes,
                     bytes < record.bytes ? "is truncated" : "was changed");
}

std::string hash_problem(const FileRecord& record, const std::string& hash) {
  if (hash == record.hash) return "";
  return fmt::format("is corrupt: its hash is {}, the manifest says {}", hash, record.hash);
}

/// "; the newest whole one before it is PATH" where the folder is a checkpoint of a run that has
/// one.
std::string older_than(const std::string& folder) {
  const std::filesystem::path path = folder;
  if (path.parent_path().filename() != "checkpoints") return "";
  std::string older;
  try {
    for (const std::string& one : complete_checkpoints(path.parent_path().parent_path().string()))
      if (std::filesystem::path(one).filename() < path.filename()) older = one;
  } catch (const Error&) {  // this only helps a message
  }
  return older.empty() ? "" : "; the newest whole one before it is " + older;
}

std::string problem_of(const FileRecord& record, const std::string& path, bool with_hash) {
  try {
    const InputFile file(path);
    std::string problem = size_problem(record, file.bytes());
    if (problem.empty() && with_hash) problem = hash_problem(record, file.hash());
    return problem;
  } catch (const UserError& error) {
    return error.what();
  }
}

using Parts = std::vector<InputFile::Part>;

/// The tensor of a shard. UserError when it is not what the manifest describes.
const TensorInfo& tensor_of(const SafetensorsFile& file, const StateRange& source) {
  const TensorInfo& tensor = file.tensor(shard_tensor_name(source));
  if (tensor.dtype != source.dtype ||
      tensor.end - tensor.begin != source.elements() * dtype_bytes(source.dtype))
    refuse(file.path(),
           fmt::format("tensor {} is not the shard that the manifest describes", tensor.name));
  return tensor;
}

void check_dtype(const std::string& path, const StateRange& stored, const StateRange& wanted) {
  if (stored.dtype == wanted.dtype) return;
  refuse(path, fmt::format(
                   "{} of unit {} is stored as {}, but {} is wanted: the runs differ in precision",
                   wanted.state, wanted.unit, dtype_name(stored.dtype), dtype_name(wanted.dtype)));
}

/// UserError naming the first element of `wanted` that is at no position of `found`.
void require_all(const std::string& path, const StateRange& range,
                 const std::vector<Stretch>& wanted, std::vector<Stretch> found) {
  std::sort(found.begin(), found.end(),
            [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  int64_t position = 0;
  for (const Stretch& part : found) {
    if (part.begin != position) break;
    position = part.end;
  }
  for (const Stretch& part : wanted)
    if (part.packed <= position && position < part.packed + part.end - part.begin)
      refuse(path, fmt::format("no file holds element {} of {} of unit {}",
                               part.begin + position - part.packed, range.state, range.unit));
}

}  // namespace

struct CheckpointReader::VerifiedFile {
  std::mutex mutex;
  std::set<std::string> tensors;          // that the manifest lists
  bool checked = false;                   // size and hash
  std::unique_ptr<SafetensorsFile> file;  // set once checked and needed
};

/// Elements of a shard, from `first_element` on, that are wanted.
struct CheckpointReader::Piece {
  const StateRange* source = nullptr;
  int64_t first_element = 0;
  std::span<std::byte> destination;

  /// Byte of the piece in a file whose shards are as the manifest says.
  int64_t offset_in(const SafetensorsFile& file, const TensorInfo& tensor) const {
    return file.offset_of(tensor) + first_element * dtype_bytes(source->dtype);
  }

  /// The pieces as parts of a file that is not checked yet; nothing when that cannot be: a tensor
  /// is not as the manifest says (the hash will show why), or two pieces overlap.
  static std::optional<Parts> as_parts(const SafetensorsFile& file,
                                       const std::vector<Piece>& pieces) {
    Parts parts;
    try {
      const StateRange* shard = nullptr;
      const TensorInfo* tensor = nullptr;
      for (const Piece& piece : pieces) {
        if (piece.source != shard) tensor = &tensor_of(file, *piece.source);
        shard = piece.source;
        parts.push_back({piece.offset_in(file, *tensor), piece.destination});
      }
    } catch (const UserError&) {
      return std::nullopt;
    }
    std::sort(parts.begin(), parts.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    for (size_t i = 1; i < parts.size(); ++i)
      if (parts[i].offset <
          parts[i - 1].offset + static_cast<int64_t>(parts[i - 1].destination.size()))
        return std::nullopt;
    return parts;
  }
};

CheckpointReader::CheckpointReader(const std::string& path)
    : path_(resolve_checkpoint(path)), manifest_(read_manifest(path_)) {
  for (const ShardRecord& shard : manifest_.shards)
    if (shard.range.elements() > 0)
      shards_[{shard.range.unit, shard.range.state}].push_back(&shard);
  for (auto& [key, shards] : shards_)
    std::sort(shards.begin(), shards.end(),
              [](const auto* a, const auto* b) { return a->range.begin < b->range.begin; });
  for (const FileRecord& file : manifest_.files)
    files_[file.name] = std::make_unique<VerifiedFile>();
  for (const ShardRecord& shard : manifest_.shards)
    files_.at(shard.file)->tensors.insert(shard_tensor_name(shard.range));
}

CheckpointReader::~CheckpointReader() = default;

const FileRecord& CheckpointReader::record(const std::string& name) const {
  std::vector<std::string> names;
  for (const FileRecord& file : manifest_.files) {
    if (file.name == name) return file;
    names.push_back(file.name);
  }
  refuse(path_,
         fmt::format("holds no file {}; the nearest is {}", name, nearest_choice(name, names)));
}

bool CheckpointReader::has_file(const std::string& name) const { return files_.contains(name); }

/// Reads the pieces. The first to come reads the whole file and checks it on the way; others wait.
void CheckpointReader::load_file(const std::string& name, const std::vector<Piece>& pieces) const {
  VerifiedFile& entry = *files_.at(name);
  const std::string path = path_ + "/" + name;
  std::unique_lock lock(entry.mutex);
  if (entry.file == nullptr) {
    const FileRecord& expected = record(name);
    // Size before header: a cut file shall be called cut, not malformed.
    if (std::string problem = problem_of(expected, path, false); !problem.empty())
      refuse(path, problem);
    auto file = std::make_unique<SafetensorsFile>(path);
    const auto parts = Piece::as_parts(*file, pieces);
    if (std::string problem = hash_problem(expected, file->file().hash(parts.value_or(Parts())));
        !problem.empty())
      refuse(path, problem + older_than(path_));
    for (const TensorInfo& tensor : file->tensors())
      if (!entry.tensors.contains(tensor.name))
        refuse(path,
               fmt::format("holds the tensor {}, which the manifest does not list", tensor.name));
    entry.file = std::move(file);
    entry.checked = true;
    if (parts) return;
  }
  lock.unlock();
  for (const Piece& piece : pieces)
    entry.file->read_elements(tensor_of(*entry.file, *piece.source), piece.first_element,
                              piece.destination);
}

void CheckpointReader::verify_share(int64_t rank, int64_t ranks) const {
  for (size_t i = static_cast<size_t>(rank); i < manifest_.files.size();
       i += static_cast<size_t>(ranks)) {
    const FileRecord& expected = manifest_.files[i];
    VerifiedFile& entry = *files_.at(expected.name);
    const std::lock_guard lock(entry.mutex);
    if (entry.checked) continue;
    const std::string path = path_ + "/" + expected.name;
    if (std::string problem = problem_of(expected, path, true); !problem.empty())
      refuse(path, problem + older_than(path_));
    entry.checked = true;
  }
}

/// UserError unless the unit or value is known and holds the range.
void CheckpointReader::check_request(const StateRange& range) const {
  const auto elements = manifest_.elements_of(range);
  if (!elements) {
    std::vector<std::string> names;
    for (const UnitRecord& known : manifest_.units) names.push_back(known.name);
    for (const ValueRecord& known : manifest_.values) names.push_back(known.name);
    const bool value = range.unit.empty();
    const std::string& name = value ? range.state : range.unit;
    refuse(path_, fmt::format("has no {} {}; the nearest is {}", value ? "value" : "unit", name,
                              nearest_choice(name, names)));
  }
  if (range.begin < 0 || range.begin > range.end || range.end > *elements)
    refuse(path_,
           fmt::format("elements [{}, {}) of unit {} were asked for, but it has {} in this "
                       "checkpoint of model {}: another model's",
                       range.begin, range.end, range.unit, *elements, manifest_.model.dump()));
}

/// The shards of the range's address that reach into it.
std::vector<const ShardRecord*> CheckpointReader::shards_of(const StateRange& range) const {
  check_request(range);
  const auto found = shards_.find({range.unit, range.state});
  if (found == shards_.end()) {
    std::vector<std::string> states;
    for (const auto& [key, shards] : shards_)
      if (key.first == range.unit) states.push_back(key.second);
    refuse(path_,
           fmt::format(
               "holds no state {} of unit {}{}", range.state, range.unit,
               states.empty() ? "" : "; the nearest is " + nearest_choice(range.state, states)));
  }
  std::vector<const ShardRecord*> shards;
  for (const ShardRecord* shard : found->second)
    if (shard->range.begin < range.end && range.begin < shard->range.end &&
        shard->range.sender == range.sender && shard->range.replica == range.replica)
      shards.push_back(shard);
  return shards;
}

void CheckpointReader::add_pieces(const LoadRequest& request, Pieces& pieces) const {
  const StateRange& range = request.range;
  const int64_t element_bytes = dtype_bytes(range.dtype);
  ensure(static_cast<int64_t>(request.destination.size()) == range.elements() * element_bytes,
         "load: the destination has another length than the range");
  if (range.elements() == 0) return;
  const std::vector<Stretch> wanted = stretches_of(runs_of(range));
  std::vector<Stretch> found;
  for (const ShardRecord* shard : shards_of(range)) {
    const std::vector<Overlap> parts = overlaps(wanted, stretches_of(runs_of(shard->range)));
    if (!parts.empty()) check_dtype(path_, shard->range, range);
    for (const Overlap& part : parts) {
      found.push_back({part.a, part.a + part.length, 0});
      pieces[shard->file].push_back(
          {&shard->range, part.b,
           request.destination.subspan(static_cast<size_t>(part.a * element_bytes),
                                       static_cast<size_t>(part.length * element_bytes))});
    }
  }
  require_all(path_, range, wanted, std::move(found));
}

void CheckpointReader::load(const std::vector<LoadRequest>& requests) const {
  Pieces pieces;
  for (const LoadRequest& request : requests) add_pieces(request, pieces);
  for (const auto& [name, of_file] : pieces) load_file(name, of_file);
}

bool CheckpointReader::has_state(const std::string& unit, const std::string& state) const {
  return shards_.contains({unit, state});
}

std::vector<int64_t> CheckpointReader::senders_of(const StateRange& range) const {
  std::set<int64_t> senders;
  if (const auto found = shards_.find({range.unit, range.state}); found != shards_.end())
    for (const ShardRecord* shard : found->second)
      if (shard->range.replica == range.replica) senders.insert(shard->range.sender);
  return {senders.begin(), senders.end()};
}

ElementRuns CheckpointReader::sent_by(const StateRange& range) const {
  ElementRuns runs;
  if (const auto found = shards_.find({range.unit, range.state}); found != shards_.end())
    for (const ShardRecord* shard : found->second)
      if (shard->range.replica == range.replica && shard->range.sender == range.sender)
        append(runs, runs_of(shard->range));
  return runs;
}

std::string CheckpointReader::read_text(const std::string& name) const {
  const FileRecord& expected = record(name);
  const std::string path = path_ + "/" + name;
  std::string contents = read_file(path);
  std::string problem = size_problem(expected, static_cast<int64_t>(contents.size()));
  if (problem.empty()) problem = hash_problem(expected, hash_hex(contents));
  if (!problem.empty()) refuse(path, problem + older_than(path_));
  return contents;
}

std::vector<FileCheck> check_files(const Manifest& manifest, const std::string& folder,
                                   bool with_hashes) {
  std::vector<FileCheck> checks;
  for (const FileRecord& file : manifest.files)
    checks.push_back({file, problem_of(file, folder + "/" + file.name, with_hashes)});
  return checks;
}

void verify_files(const Manifest& manifest, const std::string& folder, bool with_hashes) {
  for (const FileCheck& check : check_files(manifest, folder, with_hashes))
    if (!check.problem.empty()) refuse(folder + "/" + check.file.name, check.problem);
}

std::string stored_parameter_hash(const CheckpointReader& reader) {
  std::map<std::string, std::pair<const UnitRecord*, const ParameterRecord*>> parameters;
  std::vector<std::string> names;
  std::map<std::string, Dtype> dtypes;
  for (const UnitRecord& unit : reader.manifest().units)
    for (const ParameterRecord& parameter : unit.parameters) {
      parameters[parameter.name] = {&unit, &parameter};
      names.push_back(parameter.name);
    }
  for (const ShardRecord& shard : reader.manifest().shards)
    if (shard.range.state == kMaster) dtypes[shard.range.unit] = shard.range.dtype;
  std::vector<std::byte> buffer;
  return parameter_hash(names, [&](const std::string& name) -> std::span<const std::byte> {
    const auto [unit, parameter] = parameters.at(name);
    const Dtype dtype = dtypes.contains(unit->name) ? dtypes.at(unit->name) : Dtype::kFloat32;
    buffer.resize(static_cast<size_t>(parameter->elements() * dtype_bytes(dtype)));
    reader.load(
        {unit->name, kMaster, parameter->offset, parameter->offset + parameter->elements(), dtype},
        buffer);
    return buffer;
  });
}

}  // namespace strait::checkpoint
