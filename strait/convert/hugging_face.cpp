#include "strait/convert/hugging_face.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/files/hash.h"
#include "strait/checkpoint/files/safetensors.h"
#include "strait/config/validate.h"
#include "strait/convert/hidden_folder.h"
#include "strait/convert/hugging_face_companions.h"
#include "strait/convert/hugging_face_family.h"
#include "strait/convert/hugging_face_tensors.h"

namespace strait::convert {
namespace {

namespace fs = std::filesystem;

/// [rows, columns] -> [columns, rows].
void transpose(std::span<const std::byte> from, int64_t rows, int64_t columns,
               std::span<std::byte> to) {
  const size_t bytes = from.size() / static_cast<size_t>(rows * columns);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      std::memcpy(to.data() + static_cast<size_t>(column * rows + row) * bytes,
                  from.data() + static_cast<size_t>(row * columns + column) * bytes, bytes);
}

void import_part(const ForeignTensors& tensors, const ForeignPart& part, Dtype dtype,
                 std::span<std::byte> destination) {
  const ForeignTensors::Found found = tensors.at(part.name);
  if (found.tensor->dims != part.dims)
    refuse_file(found.file->path(),
                fmt::format("tensor {} has the shape [{}], but config.json asks for [{}]",
                            found.tensor->name, fmt::join(found.tensor->dims, ", "),
                            fmt::join(part.dims, ", ")));
  const std::vector<std::byte> values = read_tensor_as(found, dtype);
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
std::set<std::string> import_parameters(const ForeignTensors& tensors, const ForeignFamily& family,
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
void check_rest(const ForeignTensors& tensors, const ForeignFamily& family, Dtype dtype,
                std::set<std::string> taken) {
  const auto head = tensors.all().find("lm_head.weight");
  if (head != tensors.all().end() && !taken.contains("lm_head.weight")) {
    if (read_tensor_as(head->second, dtype) !=
        read_tensor_as(tensors.at(family.embedding()), dtype))
      refuse_file(
          head->second.file->path(),
          fmt::format("lm_head.weight differs from {}, but config.json says that they are tied; "
                      "set tie_word_embeddings to false",
                      family.embedding()));
    taken.insert("lm_head.weight");
  }
  for (const auto& [name, found] : tensors.all())
    if (!taken.contains(name) && !family.is_ignored(name))
      refuse_file(
          found.file->path(),
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
      "context = {}\nbias = {}\ndropout = {}\ntied_head = {}\nnorm_eps = {}\nhead_width = {}\n"
      "window = {}\nwindow_pattern = {}\nquery_scalar = {}\nscore_cap = {}\nlogit_cap = {}\n"
      "vocabulary = {}\n",
      Json(name).dump(), dtype == Dtype::kFloat64 ? "fp64" : "fp32", model.family, shape.layers,
      shape.heads, shape.kv_heads, shape.width, shape.ffn_width, shape.context, shape.bias,
      number(shape.dropout), shape.tied_head, number(shape.norm_eps), shape.head_width,
      shape.window, shape.window_pattern, number(shape.query_scalar), number(shape.score_cap),
      number(shape.logit_cap), shape.vocabulary);
  const RopeOptions& rope = shape.rope;
  if (block_style(model.family).rotary)
    text += fmt::format(
        "[model.rope]\ntheta = {}\nfactor = {}\nlow_frequency_factor = {}\n"
        "high_frequency_factor = {}\noriginal_context = {}\nlocal_theta = {}\n",
        number(rope.theta), number(rope.factor), number(rope.low_frequency_factor),
        number(rope.high_frequency_factor), rope.original_context, number(rope.local_theta));
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

/// Every parameter that Hugging Face's model has, from a state that may have fewer biases. Owns
/// what the views point to.
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

/// What was imported, unchanged; files that were not there are made.
std::map<std::string, std::string> companions_of(const ModelState& state,
                                                 const Tokenizer& tokenizer) {
  std::map<std::string, std::string> files = state.companions;
  for (auto& [name, text] : companion_files(state.shape.options, state.tokenizer_json,
                                            tokenizer.end_of_document().value_or(-1)))
    files.try_emplace(name, std::move(text));
  return files;
}

constexpr const char* kGeneration = "generation_config.json";
/// The tokens by which generation begins, ends and fills up.
constexpr std::array kTokenIds = {"bos_token_id", "eos_token_id", "pad_token_id"};

/// Those of config.json, where there is no generation_config.json to carry along.
void keep_token_ids(const Json& config, ModelState& state) {
  Json generation = Json::object({{"_from_model_config", true}});
  for (const char* key : kTokenIds)
    if (const Json* id = config.find(key); id != nullptr && !id->is_null()) generation[key] = *id;
  if (generation.find("eos_token_id") != nullptr)
    state.companions.try_emplace(kGeneration, generation.dump(2) + "\n");
}

void restore_token_ids(const ModelState& state, Json& config) {
  const auto found = state.companions.find(kGeneration);
  if (found == state.companions.end()) return;
  try {
    const Json generation = Json::parse(found->second, kGeneration);
    for (const char* key : kTokenIds)
      if (const Json* id = generation.is_object() ? generation.find(key) : nullptr)
        config[key] = *id;
  } catch (const UserError&) {  // it is carried along, whatever it says
  }
}

/// Rows of the embedding: those of the tokens, and often some more.
int64_t rows_of_vocabulary(int64_t rows, const std::string& config_path, int64_t tokens) {
  if (rows != 0 && rows < tokens)
    refuse_file(config_path,
                fmt::format("vocab_size is {}, but tokenizer.json has {} tokens", rows, tokens));
  return rows > tokens ? rows : 0;
}

/// tokenizer.json without special tokens from number `rows` on, for which the model has no rows:
/// the small Gemma 3 models have the tokenizer of those that see pictures.
std::string without_tokens_from(int64_t rows, const std::string& text, const std::string& path,
                                std::vector<std::string>& notes) {
  const Json json = Json::parse(text, path);
  const Json* added = json.find("added_tokens");
  if (rows == 0 || added == nullptr || !added->is_array()) return text;
  Json::Array kept;
  std::set<std::string> dropped;
  for (const Json& token : added->as_array()) {
    const auto is = [&](const char* key, bool (Json::*type)() const) {
      const Json* member = token.is_object() ? token.find(key) : nullptr;
      return member != nullptr && (member->*type)();
    };
    // What is malformed stays, for parse_tokenizer to name.
    if (is("special", &Json::is_bool) && token.at("special").as_bool() &&
        is("id", &Json::is_integer) && is("content", &Json::is_string) &&
        token.at("id").as_integer() >= rows)
      dropped.insert(token.at("content").as_string());
    else
      kept.push_back(token);
  }
  if (dropped.empty()) return text;
  Json result = json;
  result["added_tokens"] = kept;
  notes.push_back(
      fmt::format("tokenizer.json: the special tokens {} have no rows in the model and "
                  "are left out",
                  fmt::join(dropped, ", ")));
  if (const Json& vocabulary = json.at("model").at("vocab"); vocabulary.is_object()) {
    Json::Object members;
    for (const Json::Member& member : vocabulary.as_object())
      if (!dropped.contains(member.first)) members.push_back(member);
    result["model"]["vocab"] = Json::from_members(std::move(members));
  }
  return result.dump();
}

/// config.json of the part that reads text, of a model that also reads pictures; else all of it.
Json text_part(const Json& config, std::vector<std::string>& notes) {
  const Json *type = config.find("model_type"), *text = config.find("text_config");
  if (type == nullptr || type->dump() != "\"gemma3\"" || text == nullptr || !text->is_object())
    return config;
  Json part = *text;
  if (part.find("model_type") == nullptr) part["model_type"] = "gemma3_text";
  const Json* tied = config.find("tie_word_embeddings");
  if (part.find("tie_word_embeddings") == nullptr && tied != nullptr)
    part["tie_word_embeddings"] = *tied;
  notes.push_back("text_config is read; the tensors that see pictures are left out");
  return part;
}

/// Before the names of tensors: the family's, or what stands there where text is a part.
std::string prefix_in(const std::string& folder, const ForeignFamily& family) {
  for (const char* prefix : {"language_model.model.", "model.language_model."})
    if (ForeignTensors(folder, prefix).all().contains(family.embedding())) return prefix;
  return family.prefix();
}

/// The numbers by which generation with Gemma begins and fills up.
void add_special_tokens(const std::string& tokenizer_json, Json& config) {
  const Json tokenizer = Json::parse(tokenizer_json, "tokenizer.json");
  const Json* added = tokenizer.find("added_tokens");
  if (added == nullptr || !added->is_array()) return;
  for (const Json& token : added->as_array()) {
    const std::string content = token.at("content").dump();
    if (content == "\"<bos>\"") config["bos_token_id"] = token.at("id");
    if (content == "\"<pad>\"") config["pad_token_id"] = token.at("id");
  }
}

/// The folder's name, as a run may have it: also of "." and "model/".
std::string name_of(const std::string& folder) {
  const std::string name = without_slash(fs::absolute(folder)).filename().string();
  return name.empty() ? "imported" : nearest_run_name(name);
}

}  // namespace

ModelState read_hugging_face(const std::string& folder) {
  const std::string config_path = folder + "/config.json";
  std::vector<std::string> notes;
  if (!path_exists(config_path))
    refuse_file(folder,
                "holds weights, but no config.json, which says of what model; copy it from where "
                "the weights are from");
  const Json config = text_part(Json::parse(read_file(config_path), config_path), notes);
  ModelOptions model;
  model.family = family_of_config(config, config_path, notes);
  const ForeignFamily& family = foreign_family(model.family);
  model.shape = family.shape(config, config_path, notes);
  const std::string tokenizer_path = folder + "/tokenizer.json";
  const int64_t rows = family.vocabulary_rows(config, config_path);
  const std::string tokenizer =
      without_tokens_from(rows, read_file(tokenizer_path), tokenizer_path, notes);
  model.shape.vocabulary = rows_of_vocabulary(
      rows, config_path, parse_tokenizer(tokenizer, tokenizer_path)->vocabulary_size());
  const ForeignTensors tensors(folder, prefix_in(folder, family));
  const bool wide = tensors.at(family.embedding()).tensor->dtype == Dtype::kFloat64;
  ModelState state = make_state(
      run_of(model, wide ? Dtype::kFloat64 : Dtype::kFloat32, name_of(folder)), tokenizer, folder);
  state.notes = std::move(notes);
  state.companions = read_companions(folder);
  keep_token_ids(config, state);
  state.require_memory_for(1);
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
  if (const std::string kind = tokenizer->kind(); kind == "byte" || kind == "char" || kind == "ids")
    state.notes.push_back(fmt::format(
        "tokenizer.json holds Strait's {} tokenizer, which no other program reads", kind));
  HiddenFolder hidden(folder);
  std::vector<checkpoint::FileRecord> files;
  const checkpoint::WrittenFile written = checkpoint::write_safetensors(
      hidden.path() + "/" + kWeightsFile, weights.tensors, {{"format", "pt"}});
  files.push_back({kWeightsFile, written.bytes, written.hash});
  Json config = family.config(state.shape.options, state.dtype, *tokenizer, state.notes);
  add_special_tokens(state.tokenizer_json, config);
  restore_token_ids(state, config);
  files.push_back(write_text(hidden.path(), "config.json", config.dump(2) + "\n"));
  files.push_back(write_text(hidden.path(), "tokenizer.json", state.tokenizer_json));
  for (const auto& [name, text] : companions_of(state, *tokenizer))
    files.push_back(write_text(hidden.path(), name, text));
  hidden.publish();
  return files;
}

}  // namespace strait::convert
