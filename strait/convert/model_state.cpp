#include "strait/convert/model_state.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/finite.h"
#include "strait/base/process_memory.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/files/hash.h"
#include "strait/checkpoint/reader.h"
#include "strait/config/parse.h"
#include "strait/config/print.h"
#include "strait/config/validate.h"
#include "strait/convert/hidden_folder.h"
#include "strait/convert/hugging_face_companions.h"
#include "strait/tokenizer/tokenizer.h"

namespace strait::convert {
namespace {

using checkpoint::FileRecord;

/// A state of units, of the first replica where each has its own: not what senders keep, and no
/// value of the run.
bool is_of_model(const checkpoint::StateRange& range) {
  return !range.unit.empty() && range.sender == checkpoint::kNoSender && range.replica == 0;
}

std::set<std::string> states_of(const checkpoint::Manifest& manifest, Part part) {
  if (part == Part::kWeights) return {checkpoint::kMaster};
  std::set<std::string> names;
  for (const checkpoint::ShardRecord& shard : manifest.shards)
    if (is_of_model(shard.range)) names.insert(shard.range.state);
  return names;
}

/// Every shard that is not of the model, with memory for it.
std::vector<Kept> kept_shards(const checkpoint::Manifest& manifest) {
  std::vector<Kept> all;
  for (const auto& [range, file] : manifest.shards)
    if (!is_of_model(range))
      all.push_back({range, std::vector<std::byte>(
                                static_cast<size_t>(range.elements() * dtype_bytes(range.dtype)))});
  return all;
}

/// What training resumes with; AdamW keeps two moments, SGD one.
std::vector<std::string> moments_of(const Run& run) {
  if (run.optimizer.kind == "sgd") return {checkpoint::kMomentum};
  return {checkpoint::kFirstMoment, checkpoint::kSecondMoment};
}

/// The run file that goes on from the checkpoint in `run_dir`.
std::string resuming_run(Run run, const std::string& run_dir) {
  run.output.run_dir = run_dir;
  run.checkpoint.resume = "auto";
  return print_run(run);
}

}  // namespace

std::span<std::byte> ModelState::parameter(const std::string& state, int64_t unit,
                                           const ParameterShape& parameter) {
  const auto found = states.find(state);
  ensure(found != states.end(), "model state: no such state");
  const auto bytes = static_cast<size_t>(dtype_bytes(dtype));
  return std::span(found->second[static_cast<size_t>(unit)])
      .subspan(static_cast<size_t>(parameter.offset) * bytes,
               static_cast<size_t>(parameter.elements()) * bytes);
}

std::span<const std::byte> ModelState::parameter(const std::string& state, int64_t unit,
                                                 const ParameterShape& parameter) const {
  return const_cast<ModelState*>(this)->parameter(state, unit, parameter);
}

void ModelState::require_memory_for(int64_t count) const {
  int64_t elements = 0;
  for (const UnitShape& unit : shape.units) elements += unit.elements;
  require_memory_bytes(fmt::format("a conversion that holds {} parameters in {} state{}", elements,
                                   count, count == 1 ? "" : "s"),
                       elements * count * dtype_bytes(dtype), usable_memory_bytes(),
                       count > 1 ? "with --to hf the weights alone are held"
                                 : "no smaller part of the model can be converted");
}

void ModelState::require_finite_weights(const std::string& path) const {
  for (size_t unit = 0; unit < shape.units.size(); ++unit)
    for (const ParameterShape& one : shape.units[unit].parameters) {
      const auto bytes = parameter(checkpoint::kMaster, static_cast<int64_t>(unit), one);
      const auto at = first_non_finite(dtype, bytes);
      if (!at) continue;
      ErrorPlace place;
      place.file = path;
      throw UserError(fmt::format("{} of {} is not finite, first at element {}; a model of such "
                                  "weights computes nothing: take an earlier checkpoint",
                                  one.name, path, *at),
                      place);
    }
}

void ModelState::add_state(const std::string& state) {
  auto& units = states[state];
  for (const UnitShape& unit : shape.units)
    units.emplace_back(static_cast<size_t>(unit.elements * dtype_bytes(dtype)));
}

std::string ModelState::parameter_hash() const {
  std::map<std::string, std::span<const std::byte>> bytes;
  std::vector<std::string> names;
  for (size_t unit = 0; unit < shape.units.size(); ++unit)
    for (const ParameterShape& one : shape.units[unit].parameters) {
      bytes[one.name] = parameter(checkpoint::kMaster, static_cast<int64_t>(unit), one);
      names.push_back(one.name);
    }
  return checkpoint::parameter_hash(names, [&](const std::string& name) { return bytes.at(name); });
}

ModelState make_state(const std::string& run_toml, const std::string& tokenizer_json,
                      const std::string& path) {
  ModelState state;
  state.run = parse_run(run_toml, path + "/run.toml");
  check_keys(state.run);
  state.tokenizer_json = tokenizer_json;
  const auto tokenizer = parse_tokenizer(tokenizer_json, path + "/tokenizer.json");
  state.shape = model_shape(state.run.model, tokenizer->vocabulary_size());
  state.dtype = state.run.train.precision == "fp64" ? Dtype::kFloat64 : Dtype::kFloat32;
  state.about.units = checkpoint::unit_records(state.shape);
  return state;
}

ModelState read_checkpoint(const std::string& path, Part part) {
  const checkpoint::CheckpointReader reader(path);
  ModelState state =
      make_state(reader.read_text("run.toml"), reader.read_text("tokenizer.json"), reader.path());
  checkpoint::require_same_units(reader.manifest(), state.about.units, reader.path());
  std::vector<checkpoint::LoadRequest> requests;
  const std::set<std::string> names = states_of(reader.manifest(), part);
  state.require_memory_for(static_cast<int64_t>(names.size()));
  for (const std::string& name : names) {
    state.add_state(name);
    for (size_t unit = 0; unit < state.shape.units.size(); ++unit) {
      const UnitShape& shape = state.shape.units[unit];
      requests.push_back(
          {{shape.name, name, 0, shape.elements, state.dtype}, state.states[name][unit]});
    }
  }
  if (part == Part::kAll) state.kept = kept_shards(reader.manifest());
  for (Kept& kept : state.kept) requests.push_back({kept.range, kept.bytes});
  reader.load(requests);
  reader.verify_share(0, 1);
  state.about = reader.manifest();
  if (part == Part::kWeights) state.about.values.clear();
  state.about.shards.clear();
  state.about.files.clear();
  state.companions = read_companions(companions_beside(reader.path()));
  return state;
}

namespace {

void write_companions(const ModelState& state, const std::string& folder) {
  if (state.companions.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw InputOutputError(fmt::format("cannot make {}: {}", folder, error.message()));
  for (const auto& [name, contents] : state.companions)
    write_file_atomically(folder + "/" + name, contents);
}

}  // namespace

std::vector<FileRecord> write_checkpoint(const ModelState& state, const std::string& run_dir) {
  checkpoint::Manifest manifest = state.about;
  const Json* replicas = manifest.mesh.find("replica");
  manifest.ranks = replicas ? replicas->as_integer() : 1;
  manifest.mesh = replicas ? Json::object({{"data", 1}, {"replica", manifest.ranks}})
                           : Json::object({{"data", 1}});
  manifest.parameter_hash = state.parameter_hash();
  ModelState moments;  // those that are missing
  moments.shape = state.shape;
  moments.dtype = state.dtype;
  for (const std::string& name : moments_of(state.run))
    if (!state.states.contains(name)) moments.add_state(name);
  std::vector<checkpoint::ShardView> shards;
  for (const ModelState* part : {&state, static_cast<const ModelState*>(&moments)})
    for (const auto& [name, units] : part->states)
      for (size_t unit = 0; unit < units.size(); ++unit) {
        const UnitShape& shape = state.shape.units[unit];
        shards.push_back({{shape.name, name, 0, shape.elements, state.dtype}, units[unit].data()});
      }
  for (const Kept& kept : state.kept) shards.push_back({kept.range, kept.bytes.data()});
  HiddenFolder hidden(run_dir);
  const std::string folder = checkpoint::begin_save(hidden.path(), manifest.step);
  write_companions(state, companions_folder(hidden.path()));
  manifest.add(checkpoint::write_rank_file(folder, 0, shards));
  manifest.files.push_back(checkpoint::write_text(folder, "tokenizer.json", state.tokenizer_json));
  manifest.files.push_back(checkpoint::write_text(folder, "run.toml", print_run(state.run)));
  checkpoint::publish(folder, manifest);
  write_file_atomically(hidden.path() + "/run.toml", resuming_run(state.run, run_dir));
  hidden.publish();
  return manifest.files;
}

}  // namespace strait::convert
