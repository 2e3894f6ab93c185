// A model as one safetensors file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "strait/base/errors.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/files/hash.h"
#include "strait/checkpoint/files/safetensors.h"
#include "strait/config/print.h"
#include "strait/convert/hugging_face_companions.h"
#include "strait/convert/model_state.h"
#include "strait/tokenizer/utf8.h"

namespace strait::convert {
namespace {

using checkpoint::Hasher128;
using checkpoint::SafetensorsFile;
using checkpoint::TensorInfo;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  ErrorPlace place;
  place.file = path;
  throw UserError(fmt::format("{}: {}", path, what), place);
}

/// "blocks.0.mlp.up.weight" of the weights, "first_moment/blocks.0.mlp.up.weight" of a moment.
std::string tensor_name(const std::string& state, const ParameterShape& parameter) {
  return state == checkpoint::kMaster ? parameter.name : state + "/" + parameter.name;
}

const std::string* find_metadata(const SafetensorsFile& file, std::string_view key) {
  for (const auto& [name, value] : file.metadata())
    if (name == key) return &value;
  return nullptr;
}

const std::string& metadata(const SafetensorsFile& file, const char* key) {
  if (const std::string* found = find_metadata(file, key)) return *found;
  refuse(file.path(), fmt::format("has no metadata \"{}\"", key));
}

void check_format(const SafetensorsFile& file) {
  const std::string* format = find_metadata(file, "format");
  if (format != nullptr && *format == kSingleFileFormat) return;
  refuse(file.path(),
         fmt::format("its metadata does not say \"format\": \"{}\", so it is no model that `strait "
                     "convert` wrote; of a Hugging Face model name the folder, with config.json",
                     kSingleFileFormat));
}

/// States whose tensors the file has, beside those of `kept`.
std::set<std::string> states_in(const SafetensorsFile& file, const std::set<std::string>& kept) {
  std::set<std::string> names = {checkpoint::kMaster};
  for (const TensorInfo& tensor : file.tensors())
    if (const size_t slash = tensor.name.find('/');
        slash != std::string::npos && !kept.contains(tensor.name))
      names.insert(tensor.name.substr(0, slash));
  return names;
}

/// Metadata of files beside a Hugging Face model: this, then the name.
constexpr std::string_view kCompanion = "hugging_face/";

/// All but the manifest; of the companions those that are text, which metadata must be.
checkpoint::Metadata metadata_of(const ModelState& state) {
  checkpoint::Metadata list = {{"format", kSingleFileFormat},
                               {"run.toml", print_run(state.run)},
                               {"tokenizer.json", state.tokenizer_json}};
  for (const auto& [name, text] : state.companions)
    if (first_invalid_utf8(text) == text.size())
      list.push_back({std::string(kCompanion) + name, text});
  return list;
}

/// In the manifest's `extra`. Files of version 0.1 have none.
constexpr const char* kContentHash = "content_hash";
constexpr const char* kManifest = "manifest";

/// XXH3-128 of all that a file holds but the manifest, which has a hash of its own: metadata by
/// key, then tensors by name, each with its dtype and dims. `add_data` hashes the data of one.
template <class Tensor, class AddData>
std::string content_hash(const checkpoint::Metadata& metadata, const std::vector<Tensor>& tensors,
                         const AddData& add_data) {
  Hasher128 hasher;
  const auto add = [&](const std::string& text) {
    hasher.update(fmt::format("{}:", text.size()));
    hasher.update(text);
  };
  checkpoint::Metadata sorted = metadata;
  std::ranges::sort(sorted);
  for (const auto& [key, value] : sorted) {
    if (key == kManifest) continue;
    add(key);
    add(value);
  }
  std::vector<const Tensor*> by_name;
  for (const Tensor& tensor : tensors) by_name.push_back(&tensor);
  std::ranges::sort(by_name, {}, [](const Tensor* tensor) { return tensor->name; });
  for (const Tensor* tensor : by_name) {
    add(tensor->name);
    add(fmt::format("{} [{}]", dtype_name(tensor->dtype), fmt::join(tensor->dims, ", ")));
    add_data(hasher, *tensor);
  }
  return hasher.hex();
}

std::string content_hash(const SafetensorsFile& file) {
  std::vector<std::byte> chunk(size_t{1} << 20);
  return content_hash(
      file.metadata(), file.tensors(), [&](Hasher128& hasher, const TensorInfo& tensor) {
        const int64_t end = tensor.end - tensor.begin;
        for (int64_t at = 0; at < end; at += static_cast<int64_t>(chunk.size())) {
          const auto part = std::span(chunk).first(
              static_cast<size_t>(std::min(static_cast<int64_t>(chunk.size()), end - at)));
          file.file().read_at(file.offset_of(tensor) + at, part);
          hasher.update(part);
        }
      });
}

/// The manifest of a file whose content has the hash that it states.
checkpoint::Manifest checked_manifest(const SafetensorsFile& file) {
  checkpoint::Manifest manifest =
      checkpoint::parse_manifest(metadata(file, kManifest), file.path());
  const Json* stated = manifest.extra.find(kContentHash);
  if (stated == nullptr) return manifest;
  if (const std::string found = content_hash(file); stated->dump() != Json(found).dump())
    refuse(file.path(), fmt::format("is corrupt: its content has the hash {}, its manifest says {}",
                                    found, stated->dump()));
  Json extra = Json::object();
  for (const auto& [key, value] : manifest.extra.as_object())
    if (key != kContentHash) extra[key] = value;
  manifest.extra = std::move(extra);
  return manifest;
}

void take_companions(const SafetensorsFile& file, ModelState& state) {
  for (const auto& [name, text] : file.metadata())
    if (name.starts_with(kCompanion) && is_companion(name.substr(kCompanion.size())))
      state.companions[name.substr(kCompanion.size())] = text;
}

/// Takes what the manifest lists as shards, and their names.
std::set<std::string> read_kept(const SafetensorsFile& file, ModelState& state, Part part) {
  std::set<std::string> names;
  for (const auto& [range, of_file] : state.about.shards) {
    const TensorInfo& tensor = file.tensor(checkpoint::shard_tensor_name(range));
    names.insert(tensor.name);
    if (part == Part::kWeights) continue;
    const int64_t bytes = range.elements() * dtype_bytes(range.dtype);
    if (tensor.dtype != range.dtype || tensor.end - tensor.begin != bytes)
      refuse(file.path(),
             fmt::format("tensor {} is not the shard that the manifest describes", tensor.name));
    std::vector<std::byte>& to =
        state.kept.emplace_back(Kept{range, std::vector<std::byte>(static_cast<size_t>(bytes))})
            .bytes;
    file.read_tensor(tensor, to);
  }
  if (part == Part::kWeights) state.about.values.clear();
  state.about.shards.clear();
  state.about.files.clear();
  return names;
}

void read_parameter(const SafetensorsFile& file, const std::string& name, ModelState& state,
                    const ParameterShape& parameter, std::span<std::byte> destination) {
  const TensorInfo& tensor = file.tensor(name);
  if (tensor.dtype != state.dtype || tensor.dims != parameter.dims)
    refuse(file.path(), fmt::format("tensor {} is {} [{}], but {} [{}] is wanted", name,
                                    dtype_name(tensor.dtype), fmt::join(tensor.dims, ", "),
                                    dtype_name(state.dtype), fmt::join(parameter.dims, ", ")));
  file.read_tensor(tensor, destination);
}

void refuse_unknown(const SafetensorsFile& file, const std::set<std::string>& known) {
  for (const TensorInfo& tensor : file.tensors())
    if (!known.contains(tensor.name))
      refuse(file.path(), fmt::format("holds the tensor {}, which the model does not have; the "
                                      "nearest is {}",
                                      tensor.name, nearest_choice(tensor.name, known)));
}

}  // namespace

std::vector<checkpoint::FileRecord> write_single_file(const ModelState& state,
                                                      const std::string& path) {
  checkpoint::Manifest manifest = state.about;
  manifest.parameter_hash = state.parameter_hash();
  std::vector<checkpoint::TensorView> tensors;
  for (const auto& [name, units] : state.states)
    for (size_t unit = 0; unit < units.size(); ++unit)
      for (const ParameterShape& parameter : state.shape.units[unit].parameters)
        tensors.push_back({tensor_name(name, parameter), state.dtype, parameter.dims,
                           state.parameter(name, static_cast<int64_t>(unit), parameter)});
  const std::string name = std::filesystem::path(path).filename().string();
  if (!state.kept.empty()) manifest.files = {{name, 0, ""}};
  for (const auto& [range, bytes] : state.kept) {
    tensors.push_back(
        {checkpoint::shard_tensor_name(range), range.dtype, {range.elements()}, bytes});
    manifest.shards.push_back({range, name});
  }
  checkpoint::Metadata metadata = metadata_of(state);
  manifest.extra[kContentHash] = content_hash(
      metadata, tensors,
      [](Hasher128& hasher, const checkpoint::TensorView& tensor) { hasher.update(tensor.data); });
  metadata.insert(metadata.begin() + 1, {kManifest, checkpoint::manifest_text(manifest)});
  const checkpoint::WrittenFile written =
      checkpoint::write_safetensors(path, std::move(tensors), metadata);
  return {{name, written.bytes, written.hash}};
}

ModelState read_single_file(const std::string& path, Part part) {
  const SafetensorsFile file(path);
  check_format(file);
  checkpoint::Manifest manifest = checked_manifest(file);
  ModelState state = make_state(metadata(file, "run.toml"), metadata(file, "tokenizer.json"), path);
  checkpoint::require_same_units(manifest, state.about.units, path);
  state.about = std::move(manifest);
  std::set<std::string> known = read_kept(file, state, part);
  const std::set<std::string> names = states_in(file, known);
  state.require_memory_for(part == Part::kAll ? static_cast<int64_t>(names.size()) : 1);
  for (const std::string& name : names) {
    const bool wanted = part == Part::kAll || name == checkpoint::kMaster;
    if (wanted) state.add_state(name);
    for (size_t unit = 0; unit < state.shape.units.size(); ++unit)
      for (const ParameterShape& parameter : state.shape.units[unit].parameters) {
        known.insert(tensor_name(name, parameter));
        if (wanted)
          read_parameter(file, tensor_name(name, parameter), state, parameter,
                         state.parameter(name, static_cast<int64_t>(unit), parameter));
      }
  }
  refuse_unknown(file, known);
  take_companions(file, state);
  if (const auto& stated = state.about.parameter_hash; stated && *stated != state.parameter_hash())
    refuse(path, fmt::format("is corrupt: its weights have the hash {}, its manifest says {}",
                             state.parameter_hash(), *stated));
  return state;
}

}  // namespace strait::convert
