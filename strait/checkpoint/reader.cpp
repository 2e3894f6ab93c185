#include "strait/checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/hash.h"

namespace strait::checkpoint {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  ErrorPlace place;
  place.file = path;
  throw UserError(fmt::format("{}: {}", path, what), place);
}

std::string group_key(const std::string& unit, const std::string& state) {
  return unit + "/" + state;
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
      tensor.end - tensor.begin != (source.end - source.begin) * dtype_bytes(source.dtype))
    refuse(file.path(),
           fmt::format("tensor {} is not the shard that the manifest describes", tensor.name));
  return tensor;
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
  StateRange source;
  int64_t first_element = 0;
  std::span<std::byte> destination;

  /// The pieces as parts of a file that is not checked yet; nothing when that cannot be: a tensor is not
  /// as the manifest says (the hash will show why), or two pieces overlap.
  static std::optional<Parts> as_parts(const SafetensorsFile& file,
                                       const std::vector<Piece>& pieces) {
    Parts parts;
    try {
      for (const Piece& piece : pieces)
        parts.push_back({file.offset_of(tensor_of(file, piece.source)) +
                             piece.first_element * dtype_bytes(piece.source.dtype),
                         piece.destination});
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
    if (shard.range.end > shard.range.begin)
      shards_[group_key(shard.range.unit, shard.range.state)].push_back(&shard);
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
      refuse(path, problem);
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
    entry.file->read_elements(tensor_of(*entry.file, piece.source), piece.first_element,
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
      refuse(path, problem);
    entry.checked = true;
  }
}

const std::vector<const ShardRecord*>& CheckpointReader::shards_of(const StateRange& range) const {
  const UnitRecord* unit = manifest_.unit(range.unit);
  if (unit == nullptr) {
    std::vector<std::string> names;
    for (const UnitRecord& known : manifest_.units) names.push_back(known.name);
    refuse(path_, fmt::format("has no unit {}; the nearest is {}", range.unit,
                              nearest_choice(range.unit, names)));
  }
  if (range.begin < 0 || range.begin > range.end || range.end > unit->elements)
    refuse(path_,
           fmt::format("elements [{}, {}) of unit {} were asked for, but it has {} in this "
                       "checkpoint of model {}: another model's",
                       range.begin, range.end, range.unit, unit->elements, manifest_.model.dump()));
  const auto found = shards_.find(group_key(range.unit, range.state));
  if (found != shards_.end()) return found->second;
  std::vector<std::string> states;
  for (const auto& [key, shards] : shards_)
    if (shards.front()->range.unit == range.unit) states.push_back(shards.front()->range.state);
  refuse(
      path_,
      fmt::format("holds no state {} of unit {}{}", range.state, range.unit,
                  states.empty() ? "" : "; the nearest is " + nearest_choice(range.state, states)));
}

void CheckpointReader::add_pieces(const LoadRequest& request,
                                  std::map<std::string, std::vector<Piece>>& pieces) const {
  const StateRange& range = request.range;
  const int64_t element_bytes = dtype_bytes(range.dtype);
  ensure(
      static_cast<int64_t>(request.destination.size()) == (range.end - range.begin) * element_bytes,
      "load: the destination has another length than the range");
  if (range.begin == range.end) return;
  const auto& shards = shards_of(range);
  // The last shard that starts at or before the range.
  auto shard =
      std::upper_bound(shards.begin(), shards.end(), range.begin,
                       [](int64_t begin, const auto* s) { return begin < s->range.begin; });
  if (shard != shards.begin()) --shard;
  for (int64_t position = range.begin; position < range.end; ++shard) {
    if (shard == shards.end() || (*shard)->range.begin > position ||
        (*shard)->range.end <= position)
      refuse(path_, fmt::format("no file holds element {} of {} of unit {}", position, range.state,
                                range.unit));
    const StateRange& source = (*shard)->range;
    if (source.dtype != range.dtype)
      refuse(
          path_,
          fmt::format("{} of unit {} is stored as {}, but {} is wanted: the runs differ in "
                      "precision",
                      range.state, range.unit, dtype_name(source.dtype), dtype_name(range.dtype)));
    const int64_t end = std::min(source.end, range.end);
    const auto destination =
        request.destination.subspan(static_cast<size_t>((position - range.begin) * element_bytes),
                                    static_cast<size_t>((end - position) * element_bytes));
    pieces[(*shard)->file].push_back({source, position - source.begin, destination});
    position = end;
  }
}

void CheckpointReader::load(const std::vector<LoadRequest>& requests) const {
  std::map<std::string, std::vector<Piece>> pieces;
  for (const LoadRequest& request : requests) add_pieces(request, pieces);
  for (const auto& [name, of_file] : pieces) load_file(name, of_file);
}

std::string CheckpointReader::read_text(const std::string& name) const {
  const FileRecord& expected = record(name);
  const std::string path = path_ + "/" + name;
  std::string contents = read_file(path);
  std::string problem = size_problem(expected, static_cast<int64_t>(contents.size()));
  if (problem.empty()) problem = hash_problem(expected, hash_hex(contents));
  if (!problem.empty()) refuse(path, problem);
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
