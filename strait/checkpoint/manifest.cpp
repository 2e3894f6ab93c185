#include "strait/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/files/hash.h"
#include "strait/shape/modules.h"
#include "strait/shape/unet.h"

namespace strait::checkpoint {
namespace {

Json file_json(const FileRecord& file) {
  return Json::object({{"name", file.name}, {"bytes", file.bytes}, {"hash", file.hash}});
}

FileRecord parse_file(const Json& json) {
  return {plain_name(json.at("name")), count_at(json, "bytes"), json.at("hash").as_string()};
}

Json value_json(const ValueRecord& value) {
  return Json::object({{"name", value.name}, {"elements", value.elements}});
}

ValueRecord parse_value(const Json& json) {
  return {json.at("name").as_string(), count_at(json, "elements")};
}

Json unit_json(const UnitRecord& unit) {
  Json parameters = Json::array();
  for (const ParameterRecord& parameter : unit.parameters)
    parameters.push_back(Json::object(
        {{"name", parameter.name}, {"dims", parameter.dims}, {"offset", parameter.offset}}));
  return Json::object(
      {{"name", unit.name}, {"elements", unit.elements}, {"parameters", std::move(parameters)}});
}

UnitRecord parse_unit(const Json& json) {
  UnitRecord unit{json.at("name").as_string(), count_at(json, "elements"), {}};
  for (const Json& entry : json.at("parameters").as_array()) {
    ParameterRecord parameter{entry.at("name").as_string(), {}, count_at(entry, "offset")};
    int64_t end = 1;
    bool overflow = false;
    for (const Json& dim : entry.at("dims").as_array()) {
      parameter.dims.push_back(dim.as_integer());
      overflow |= dim.as_integer() < 0 || __builtin_mul_overflow(end, dim.as_integer(), &end);
    }
    if (overflow || __builtin_add_overflow(end, parameter.offset, &end) || end > unit.elements)
      throw UserError(fmt::format("parameter {} does not lie inside unit {} of {} elements",
                                  parameter.name, unit.name, unit.elements));
    unit.parameters.push_back(std::move(parameter));
  }
  return unit;
}

template <class T, class Write>
Json array_of(const std::vector<T>& records, Write write) {
  Json array = Json::array();
  for (const T& record : records) array.push_back(write(record));
  return array;
}

template <class T>
std::vector<T> parse_array(const Json& json, T (*parse)(const Json&)) {
  std::vector<T> records;
  for (const Json& entry : json.as_array()) records.push_back(parse(entry));
  return records;
}

bool is_plain(const ShardRecord& shard) {
  const StateRange& range = shard.range;
  return !range.unit.empty() && range.runs.empty() && range.sender == kNoSender &&
         range.replica == 0;
}

const char* format_of(const Manifest& manifest) {
  const bool plain = manifest.values.empty() &&
                     std::all_of(manifest.shards.begin(), manifest.shards.end(), is_plain);
  return plain ? kManifestFormat : kSecondFormat;
}

Json manifest_json(const Manifest& manifest) {
  const auto& hash = manifest.parameter_hash;
  Json json = Json::object({{"format", format_of(manifest)},
                            {"step", manifest.step},
                            {"tokens", manifest.tokens},
                            {"ranks", manifest.ranks},
                            {"placement", manifest.placement},
                            {"mesh", manifest.mesh},
                            {"model", manifest.model},
                            {"seed", manifest.seed},
                            {"precision", manifest.precision},
                            {"sequences_consumed", manifest.sequences_consumed},
                            {"parameters", manifest.parameters},
                            {"parameter_hash", hash ? Json(*hash) : Json()},
                            {"units", array_of(manifest.units, unit_json)},
                            {"shards", array_of(manifest.shards, shard_json)},
                            {"files", array_of(manifest.files, file_json)},
                            {"extra", manifest.extra}});
  if (!manifest.values.empty()) json["values"] = array_of(manifest.values, value_json);
  return json;
}

void check_format(const Json& json) {
  const std::string& format = json.at("format").as_string();
  if (format == kManifestFormat || format == kSecondFormat) return;
  const bool ours = format.starts_with("strait.checkpoint/");
  throw UserError(fmt::format("format is \"{}\"{}; this program reads \"{}\" and \"{}\"", format,
                              ours ? ", another version" : ", which is no checkpoint's",
                              kManifestFormat, kSecondFormat));
}

Manifest manifest_from(const Json& json) {
  check_format(json);
  Manifest manifest;
  manifest.step = count_at(json, "step");
  manifest.tokens = count_at(json, "tokens");
  manifest.ranks = count_at(json, "ranks", 1);
  manifest.placement = json.at("placement");
  manifest.mesh = json.at("mesh");
  manifest.model = json.at("model");
  manifest.seed = json.at("seed").as_integer();
  manifest.precision = json.at("precision").as_string();
  manifest.sequences_consumed = count_at(json, "sequences_consumed");
  manifest.parameters = count_at(json, "parameters");
  if (const Json& hash = json.at("parameter_hash"); !hash.is_null())
    manifest.parameter_hash = hash.as_string();
  manifest.units = parse_array(json.at("units"), parse_unit);
  manifest.shards = parse_array(json.at("shards"), parse_shard);
  manifest.files = parse_array(json.at("files"), parse_file);
  manifest.extra = json.at("extra");
  if (const Json* values = json.find("values")) manifest.values = parse_array(*values, parse_value);
  return manifest;
}

/// The line that ends a manifest.
std::string hash_line(const std::string& hash) {
  return fmt::format(",\n  \"hash\": \"{}\"\n}}\n", hash);
}

void check_hash(const std::string& text) {
  const size_t line_bytes = hash_line(std::string(32, '0')).size();
  if (text.size() < line_bytes) throw UserError("truncated");
  const std::string_view body = std::string_view(text).substr(0, text.size() - line_bytes);
  if (text.substr(body.size()) != hash_line(hash_hex(body)))
    throw UserError(
        "the text does not have the hash that its last line states: it was changed or cut off");
}

Json unet_json(const ModelOptions& model) {
  const UnetOptions& unet = model.unet;
  return Json::object({{"preset", model.preset},
                       {"family", model.family},
                       {"channels", unet.channels},
                       {"image", unet.image},
                       {"attention_from", unet.attention_from},
                       {"residual_blocks", unet.residual_blocks},
                       {"colors", unet.colors},
                       {"diffusion_steps", unet.diffusion_steps}});
}

Json modules_json(const ModelOptions& model, int64_t vocabulary) {
  return Json::object({{"family", model.family}, {"path", model.path}, {"vocabulary", vocabulary}});
}

}  // namespace

int64_t ParameterRecord::elements() const {
  int64_t product = 1;
  for (const int64_t dim : dims) product *= dim;
  return product;
}

Json rank_record_json(const RankRecord& record) {
  return Json::object(
      {{"file", file_json(record.file)}, {"shards", array_of(record.shards, shard_json)}});
}

RankRecord parse_rank_record(const Json& json) {
  return {parse_file(json.at("file")), parse_array(json.at("shards"), parse_shard)};
}

void Manifest::add(const RankRecord& record) {
  files.push_back(record.file);
  shards.insert(shards.end(), record.shards.begin(), record.shards.end());
}

const UnitRecord* Manifest::unit(const std::string& name) const {
  for (const UnitRecord& record : units)
    if (record.name == name) return &record;
  return nullptr;
}

std::optional<int64_t> Manifest::elements_of(const StateRange& range) const {
  if (!range.unit.empty()) {
    const UnitRecord* found = unit(range.unit);
    return found ? std::optional(found->elements) : std::nullopt;
  }
  for (const ValueRecord& value : values)
    if (value.name == range.state) return value.elements;
  return std::nullopt;
}

std::vector<UnitRecord> unit_records(const ModelShape& model) {
  std::vector<UnitRecord> units;
  for (const UnitShape& shape : model.units) {
    UnitRecord unit{shape.name, shape.elements, {}};
    for (const ParameterShape& parameter : shape.parameters)
      unit.parameters.push_back({parameter.name, parameter.dims, parameter.offset});
    units.push_back(std::move(unit));
  }
  return units;
}

Json model_json(const ModelOptions& model, int64_t vocabulary) {
  if (model.family == kUnetFamily) return unet_json(model);
  if (model.family == kModulesFamily) return modules_json(model, vocabulary);
  const ShapeOptions& shape = model.shape;
  return Json::object({{"preset", model.preset},
                       {"family", model.family},
                       {"layers", shape.layers},
                       {"heads", shape.heads},
                       {"kv_heads", shape.kv_heads},
                       {"width", shape.width},
                       {"ffn_width", shape.ffn_width},
                       {"context", shape.context},
                       {"bias", shape.bias},
                       {"dropout", shape.dropout},
                       {"tied_head", shape.tied_head},
                       {"norm_eps", shape.norm_eps},
                       {"head_width", shape.head_width},
                       {"window", shape.window},
                       {"window_pattern", shape.window_pattern},
                       {"query_scalar", shape.query_scalar},
                       {"score_cap", shape.score_cap},
                       {"logit_cap", shape.logit_cap},
                       {"vocabulary", vocabulary}});
}

std::string manifest_text(const Manifest& manifest) {
  std::string text = manifest_json(manifest).dump(2);
  text.resize(text.size() - 2);  // without "\n}", which the hash line brings
  return text + hash_line(hash_hex(text));
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  try {
    // Format first: a later version may end otherwise.
    const Json json = Json::parse(text, path);
    check_format(json);
    check_hash(text);
    Manifest manifest = manifest_from(json);
    check_shards(manifest);
    return manifest;
  } catch (const UserError& error) {
    ErrorPlace place = error.place();
    place.file = path;
    throw UserError(fmt::format("{} is not a valid manifest: {}", path, error.what()), place);
  }
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestFile;
  return parse_manifest(read_file(path), path);
}

}  // namespace strait::checkpoint
