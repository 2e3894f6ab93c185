#include "strait/convert/hugging_face.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/hash.h"
#include "strait/checkpoint/safetensors.h"
#include "strait/convert/hugging_face_family.h"

namespace strait::convert {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsFile;
using checkpoint::TensorInfo;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  ErrorPlace place;
  place.file = path;
  throw UserError(fmt::format("{}: {}", path, what), place);
}

/// The tensors of a folder, by name without the family's prefix.
class Tensors {
 public:
  Tensors(const std::string& folder, std::string prefix)
      : folder_(folder), prefix_(std::move(prefix)) {
    if (fs::exists(folder + "/" + kIndex)) {
      open_shards(folder + "/" + kIndex);
    } else {
      open(kWeights);
    }
  }
  struct Found {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
  };
  const std::map<std::string, Found>& all() const { return tensors_; }
  Found at(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found != tensors_.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [known, tensor] : tensors_) names.push_back(known);
    refuse(folder_,
           fmt::format("has no tensor {}; the nearest is {}", name, nearest_choice(name, names)));
  }

 private:
  const SafetensorsFile& open(const std::string& name) {
    auto& file = files_[name];
    if (file != nullptr) return *file;
    if (name.find('/') != std::string::npos)
      refuse(folder_ + "/" + kIndex, fmt::format("\"{}\" is no file of the folder", name));
    file = std::make_unique<SafetensorsFile>(folder_ + "/" + name);
    for (const TensorInfo& tensor : file->tensors()) {
      const std::string_view full = tensor.name;
      const std::string plain(full.starts_with(prefix_) ? full.substr(prefix_.size()) : full);
      if (!tensors_.emplace(plain, Found{file.get(), &tensor}).second)
        refuse(file->path(), fmt::format("holds the tensor {} a second time", tensor.name));
    }
    return *file;
  }
  void open_shards(const std::string& index) {
    std::set<std::string> listed;
    const Json json = Json::parse(read_file(index), index);
    for (const auto& [name, file] : json.at("weight_map").as_object()) {
      open(file.as_string()).tensor(name);  // names the nearest when it is not there
      listed.insert(name);
    }
    for (const auto& [name, found] : tensors_)
      if (!listed.contains(found.tensor->name))
        refuse(found.file->path(), fmt::format("holds the tensor {}, which {} does not list",
                                               found.tensor->name, kIndex));
  }

  std::string folder_, prefix_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Found> tensors_;
};

float widened(uint16_t bits, Dtype dtype) {
  if (dtype == Dtype::kBfloat16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u, fraction = bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float tiny = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -tiny : tiny;
}

/// A tensor in `dtype`; 16-bit floats are widened.
std::vector<std::byte> read_as(const Tensors::Found& found, Dtype dtype) {
  const TensorInfo& tensor = *found.tensor;
  std::vector<std::byte> stored(static_cast<size_t>(tensor.end - tensor.begin));
  found.file->read_tensor(tensor, stored);
  if (tensor.dtype == dtype) return stored;
  const bool half = tensor.dtype == Dtype::kFloat16 || tensor.dtype == Dtype::kBfloat16;
  if (!half || dtype != Dtype::kFloat32)
    refuse(found.file->path(), fmt::format("tensor {} is {}, but {} is wanted", tensor.name,
                                           dtype_name(tensor.dtype), dtype_name(dtype)));
  std::vector<std::byte> wide(2 * stored.size());
  for (size_t i = 0; i < stored.size() / 2; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, stored.data() + 2 * i, sizeof bits);
    const float value = widened(bits, tensor.dtype);
    std::memcpy(wide.data() + 4 * i, &value, sizeof value);
  }
  return wide;
}

/// [rows, columns] -> [columns, rows].
void transpose(std::span<const std::byte> from, int64_t rows, int64_t columns,
               std::span<std::byte> to) {
  const size_t bytes = from.size() / static_cast<size_t>(rows * columns);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      std::memcpy(to.data() + static_cast<size_t>(column * rows + row) * bytes,
                  from.data() + static_cast<size_t>(row * columns + column) * bytes, bytes);
}

void import_part(const Tensors& tensors, const ForeignPart& part, Dtype dtype,
                 std::span<std::byte> destination) {
  const Tensors::Found found = tensors.at(part.name);
  if (found.tensor->dims != part.dims)
    refuse(found.file->path(),
           fmt::format("tensor {} has the shape [{}], but config.json asks for [{}]",
                       found.tensor->name, fmt::join(found.tensor->dims, ", "),
                       fmt::join(part.dims, ", ")));
  const std::vector<std::byte> values = read_as(found, dtype);
  if (part.transposed) {
    transpose(values, part.dims[0], part.dims[1], destination);
  } else {
    std::memcpy(destination.data(), values.data(), values.size());
  }
}

size_t part_bytes(const ForeignPart& part, Dtype dtype) {
  int64_t elements = 1;
  for (const int64_t dim : part.dims) elements *= dim;
  return static_cast<size_t>(elements * dtype_bytes(dtype));
}

/// Reads every parameter of the state; returns the names of the tensors taken.
std::set<std::string> import_parameters(const Tensors& tensors, const ForeignFamily& family,
                                        ModelState& state) {
  std::set<std::string> taken;
  for (size_t unit = 0; unit < state.shape.units.size(); ++unit)
    for (const ParameterShape& parameter : state.shape.units[unit].parameters) {
      std::span<std::byte> rest =
          state.parameter(checkpoint::kMaster, static_cast<int64_t>(unit), parameter);
      for (const ForeignPart& part : family.parts(state.shape, parameter)) {
        const size_t bytes = part_bytes(part, state.dtype);
        import_part(tensors, part, state.dtype, rest.first(bytes));
        rest = rest.subspan(bytes);
        taken.insert(part.name);
      }
      ensure(rest.empty(), "import: the parts are not the parameter");
    }
  return taken;
}

/// Tensors that no parameter takes: masks, and a head that repeats the embedding.
void check_rest(const Tensors& tensors, const ForeignFamily& family, Dtype dtype,
                std::set<std::string> taken) {
  const auto head = tensors.all().find("lm_head.weight");
  if (head != tensors.all().end() && !taken.contains("lm_head.weight")) {
    if (read_as(head->second, dtype) != read_as(tensors.at(family.embedding()), dtype))
      refuse(head->second.file->path(),
             fmt::format("lm_head.weight differs from {}, but config.json says that they are tied; "
                         "set tie_word_embeddings to false",
                         family.embedding()));
    taken.insert("lm_head.weight");
  }
  for (const auto& [name, found] : tensors.all())
    if (!taken.contains(name) && !family.is_ignored(name))
      refuse(found.file->path(),
             fmt::format("holds the tensor {}, which {} of this config.json does not have; the "
                         "nearest is {}",
                         found.tensor->name, family.title(), nearest_choice(name, taken)));
}

std::string run_of(const ModelOptions& model, Dtype dtype, const std::string& name) {
  const ShapeOptions& shape = model.shape;
  const auto number = [](double value) { return Json(value).dump(); };
  std::string text = fmt::format(
      "name = {}\n[train]\nprecision = \"{}\"\n[model]\nfamily = \"{}\"\n"
      "[model.shape]\nlayers = {}\nheads = {}\nkv_heads = {}\nwidth = {}\nffn_width = {}\n"
      "context = {}\nbias = {}\ndropout = {}\ntied_head = {}\nnorm_eps = {}\n",
      Json(name).dump(), dtype == Dtype::kFloat64 ? "fp64" : "fp32", model.family, shape.layers,
      shape.heads, shape.kv_heads, shape.width, shape.ffn_width, shape.context, shape.bias,
      number(shape.dropout), shape.tied_head, number(shape.norm_eps));
  const RopeOptions& rope = shape.rope;
  if (model.family == "llama")
    text += fmt::format(
        "[model.rope]\ntheta = {}\nfactor = {}\nlow_frequency_factor = {}\n"
        "high_frequency_factor = {}\noriginal_context = {}\n",
        number(rope.theta), number(rope.factor), number(rope.low_frequency_factor),
        number(rope.high_frequency_factor), rope.original_context);
  return text;
}

void describe(ModelState& state) {
  checkpoint::Manifest& about = state.about;
  about.placement = Json(state.run.placement.preset);
  about.model = checkpoint::model_json(state.run.model, state.shape.vocabulary);
  about.seed = static_cast<int64_t>(state.run.seed);
  about.precision = state.run.train.precision;
  about.parameters = state.shape.parameters();
  about.extra = Json::object({{"updates", 0}});
}

/// Every parameter that Hugging Face's model has, from a state that may have fewer biases. Owns what the
/// views point to.
struct Export {
  std::vector<std::vector<std::byte>> memory;
  std::vector<checkpoint::TensorView> tensors;
  int64_t zero_biases = 0;
};

void export_parameter(std::span<const std::byte> values, const std::vector<ForeignPart>& parts,
                      const ForeignFamily& family, Dtype dtype, Export& result) {
  for (const ForeignPart& part : parts) {
    auto& memory = result.memory.emplace_back(part_bytes(part, dtype));
    if (!values.empty()) {
      const auto rows = values.first(memory.size());
      if (part.transposed) {
        transpose(rows, part.dims[1], part.dims[0], memory);
      } else {
        memory.assign(rows.begin(), rows.end());
      }
      values = values.subspan(memory.size());
    }
    result.tensors.push_back(
        {(part.prefixed ? family.prefix() : "") + part.name, dtype, part.dims, memory});
  }
}

Export export_weights(const ModelState& state, const ForeignFamily& family) {
  std::map<std::string, std::pair<int64_t, const ParameterShape*>> ours;
  for (size_t unit = 0; unit < state.shape.units.size(); ++unit)
    for (const ParameterShape& parameter : state.shape.units[unit].parameters)
      ours[parameter.name] = {static_cast<int64_t>(unit), &parameter};
  const ModelShape wanted = family.exported(state.shape);
  Export result;
  for (const UnitShape& unit : wanted.units)
    for (const ParameterShape& parameter : unit.parameters) {
      std::span<const std::byte> values;
      if (const auto found = ours.find(parameter.name); found == ours.end()) {
        ++result.zero_biases;
      } else {
        values = state.parameter(checkpoint::kMaster, found->second.first, *found->second.second);
      }
      export_parameter(values, family.parts(wanted, parameter), family, state.dtype, result);
    }
  return result;
}

checkpoint::FileRecord write_text(const std::string& folder, const std::string& name,
                                  const std::string& contents) {
  write_file_atomically(folder + "/" + name, contents);
  return {name, static_cast<int64_t>(contents.size()), checkpoint::hash_hex(contents)};
}

}  // namespace

ModelState read_hugging_face(const std::string& folder) {
  const std::string config_path = folder + "/config.json";
  std::vector<std::string> notes;
  const Json config = Json::parse(read_file(config_path), config_path);
  ModelOptions model;
  model.family = family_of_config(config, config_path);
  const ForeignFamily& family = foreign_family(model.family);
  model.shape = family.shape(config, config_path, notes);
  const Tensors tensors(folder, family.prefix());
  const bool wide = tensors.at(family.embedding()).tensor->dtype == Dtype::kFloat64;
  const std::string name = fs::path(folder).lexically_normal().filename().string();
  ModelState state = make_state(
      run_of(model, wide ? Dtype::kFloat64 : Dtype::kFloat32, name.empty() ? "imported" : name),
      read_file(folder + "/tokenizer.json"), folder);
  state.notes = std::move(notes);
  if (const Json* vocabulary = config.find("vocab_size");
      vocabulary != nullptr && vocabulary->as_integer() != state.shape.vocabulary)
    refuse(config_path, fmt::format("vocab_size is {}, but tokenizer.json has {} tokens",
                                    vocabulary->as_integer(), state.shape.vocabulary));
  state.add_state(checkpoint::kMaster);
  check_rest(tensors, family, state.dtype, import_parameters(tensors, family, state));
  describe(state);
  return state;
}

std::vector<checkpoint::FileRecord> write_hugging_face(ModelState& state,
                                                       const std::string& folder) {
  const auto tokenizer = parse_tokenizer(state.tokenizer_json, "tokenizer.json");
  const ForeignFamily& family = foreign_family(state.shape.family);
  const Export weights = export_weights(state, family);
  if (weights.zero_biases > 0)
    state.notes.push_back(fmt::format(
        "the model has no biases and Hugging Face's {} has: {} tensors of zeros were added",
        family.title(), weights.zero_biases));
  if (tokenizer->kind() != "bpe")
    state.notes.push_back(
        fmt::format("tokenizer.json holds Strait's {} tokenizer, which no other program reads",
                    tokenizer->kind()));
  const fs::path path = fs::path(folder).lexically_normal();
  const std::string hidden =
      (path.parent_path() / fmt::format(".{}.partial", path.filename().string())).string();
  std::vector<checkpoint::FileRecord> files;
  std::error_code error;
  fs::remove_all(hidden, error);
  try {
    if (!fs::create_directories(hidden, error))
      throw InputOutputError(fmt::format("cannot create {}: {}", hidden, error.message()));
    const checkpoint::WrittenFile written =
        checkpoint::write_safetensors(hidden + "/" + kWeights, weights.tensors, {{"format", "pt"}});
    files.push_back({kWeights, written.bytes, written.hash});
    const Json config = family.config(state.shape.options, state.dtype, *tokenizer, state.notes);
    files.push_back(write_text(hidden, "config.json", config.dump(2) + "\n"));
    files.push_back(write_text(hidden, "tokenizer.json", state.tokenizer_json));
    fs::rename(hidden, path, error);
    if (error) throw InputOutputError(fmt::format("cannot create {}: {}", folder, error.message()));
  } catch (...) {
    fs::remove_all(hidden, error);
    throw;
  }
  return files;
}

}  // namespace strait::convert
