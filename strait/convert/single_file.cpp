// A model as one safetensors file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <set>

#include "strait/base/errors.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/files/safetensors.h"
#include "strait/config/print.h"
#include "strait/convert/hugging_face_companions.h"
#include "strait/convert/model_state.h"
#include "strait/tokenizer/utf8.h"

namespace strait::convert {
namespace {

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

/// Those that are text, which metadata must be.
checkpoint::Metadata metadata_of(const ModelState& state, const checkpoint::Manifest& manifest) {
  checkpoint::Metadata list = {{"format", kSingleFileFormat},
                               {"manifest", checkpoint::manifest_text(manifest)},
                               {"run.toml", print_run(state.run)},
                               {"tokenizer.json", state.tokenizer_json}};
  for (const auto& [name, text] : state.companions)
    if (first_invalid_utf8(text) == text.size())
      list.push_back({std::string(kCompanion) + name, text});
  return list;
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
  const checkpoint::WrittenFile written =
      checkpoint::write_safetensors(path, std::move(tensors), metadata_of(state, manifest));
  return {{name, written.bytes, written.hash}};
}

ModelState read_single_file(const std::string& path, Part part) {
  const SafetensorsFile file(path);
  check_format(file);
  ModelState state = make_state(metadata(file, "run.toml"), metadata(file, "tokenizer.json"), path);
  checkpoint::Manifest manifest = checkpoint::parse_manifest(metadata(file, "manifest"), path);
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
