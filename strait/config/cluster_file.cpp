#include "strait/config/cluster_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/config/keys.h"
#include "strait/topology/limits.h"

namespace strait {
namespace {

struct NumberRate {
  const char* key;
  double Cluster::*field;
};
constexpr NumberRate kNumberRates[] = {
    {"fp32_flops_per_second", &Cluster::flops_per_second_fp32},
    {"fp64_flops_per_second", &Cluster::flops_per_second_fp64},
    {"bf16_flops_per_second", &Cluster::flops_per_second_bf16},
    {"fp32_model_flops_per_second", &Cluster::model_flops_per_second_fp32},
    {"bf16_model_flops_per_second", &Cluster::model_flops_per_second_bf16},
    {"fp32_attention_flops_per_second", &Cluster::attention_flops_per_second_fp32},
    {"fp64_attention_flops_per_second", &Cluster::attention_flops_per_second_fp64},
    {"bf16_attention_flops_per_second", &Cluster::attention_flops_per_second_bf16},
    {"fp32_weights_per_second", &Cluster::weights_per_second_fp32},
    {"bf16_weights_per_second", &Cluster::weights_per_second_bf16},
    {"memory_bytes_per_second", &Cluster::memory_bytes_per_second},
    {"codec_bytes_per_second", &Cluster::codec_bytes_per_second},
};
struct IntegerRate {
  const char* key;
  int64_t Cluster::*field;
};
constexpr IntegerRate kIntegerRates[] = {
    {"memory_bytes", &Cluster::memory_bytes},
    {"cores_per_rank", &Cluster::cores_per_rank},
    {"ranks_per_machine", &Cluster::ranks_per_machine},
    {"cores_per_machine", &Cluster::cores_per_machine},
};

/// Errors about one cluster file.
class ClusterFile {
 public:
  explicit ClusterFile(std::string file) : file_(std::move(file)) {}

  [[noreturn]] void refuse(const std::string& key, int64_t line, const std::string& message) const {
    ErrorPlace place;
    place.file = file_;
    place.key = key;
    if (line > 0) place.line = line;
    throw UserError(message, place);
  }
  [[noreturn]] void wrong_type(const std::string& key, const TomlValue& value,
                               const char* wanted) const {
    refuse(key, value.line, fmt::format("{} wants {}, found {}", key, wanted, value.type_name()));
  }
  [[noreturn]] void unknown(const std::string& key, const TomlValue& value) const {
    std::vector<std::string> known = {"version", "name", "levels", "rates", "rates.shares_cores"};
    for (const NumberRate& rate : kNumberRates) known.push_back(std::string("rates.") + rate.key);
    for (const IntegerRate& rate : kIntegerRates) known.push_back(std::string("rates.") + rate.key);
    refuse(key, value.line,
           fmt::format("unknown key \"{}\" of a cluster file; the nearest is \"{}\"", key,
                       nearest_choice(key.substr(0, 100), known)));
  }

  void read_rate(const std::string& word, const TomlValue& value, Cluster& cluster) const {
    const std::string key = "rates." + word;
    for (const NumberRate& rate : kNumberRates)
      if (word == rate.key) return void(cluster.*rate.field = positive_number(key, value));
    for (const IntegerRate& rate : kIntegerRates)
      if (word == rate.key) return void(cluster.*rate.field = positive_integer(key, value));
    if (word != "shares_cores") unknown(key, value);
    if (!value.as<bool>()) wrong_type(key, value, "a boolean");
    cluster.shares_cores = *value.as<bool>();
  }

  void check_version(const TomlValue& value) const {
    if (!value.as<int64_t>()) wrong_type("version", value, "an integer");
    if (*value.as<int64_t>() != 1)
      refuse("version", value.line,
             fmt::format("version = {} of a cluster file is unknown; the nearest is 1",
                         *value.as<int64_t>()));
  }

 private:
  double positive_number(const std::string& key, const TomlValue& value) const {
    double number = 0;
    if (value.as<int64_t>())
      number = static_cast<double>(*value.as<int64_t>());
    else if (value.as<double>())
      number = *value.as<double>();
    else
      wrong_type(key, value, "a number");
    if (!(number > 0) || !std::isfinite(number))
      refuse(key, value.line, fmt::format("{} = {} must be above 0", key, number));
    if (const double nearest = std::clamp(number, kLeastRate, kMostRate); number != nearest)
      refuse(key, value.line,
             fmt::format("{} = {}; the nearest valid value is {:g}", key, number, nearest));
    return number;
  }
  int64_t positive_integer(const std::string& key, const TomlValue& value) const {
    if (!value.as<int64_t>()) wrong_type(key, value, "an integer");
    if (*value.as<int64_t>() < 1)
      refuse(key, value.line,
             fmt::format("{} = {}; the nearest valid value is 1", key, *value.as<int64_t>()));
    return *value.as<int64_t>();
  }

  std::string file_;
};

}  // namespace

Cluster parse_cluster_file(std::string_view text, const std::string& file, int64_t ranks) {
  const TomlValue top = parse_toml(text, file);
  const ClusterFile reader(file);
  ClusterOptions options;
  const TomlValue* rates = nullptr;
  int64_t levels_line = 0;
  std::string name = file;
  for (const auto& [word, value] : *top.as<TomlValue::Table>()) {
    if (word == "version") {
      reader.check_version(value);
    } else if (word == "name") {
      if (!value.as<std::string>()) reader.wrong_type(word, value, "a string");
      name = *value.as<std::string>();
    } else if (word == "levels") {
      if (!value.as<TomlValue::Array>()) reader.wrong_type(word, value, "a list of levels");
      levels_line = value.line;
      for (const TomlValue& level : *value.as<TomlValue::Array>())
        options.levels.push_back(read_level(level, "levels", file));
    } else if (word == "rates") {
      if (!value.as<TomlValue::Table>()) reader.wrong_type(word, value, "a table");
      rates = &value;
    } else {
      reader.unknown(word, value);
    }
  }
  if (options.levels.empty())
    reader.refuse("levels", levels_line, "levels is missing or empty; write at least one level");
  try {
    Cluster cluster = make_cluster(options, ranks);
    cluster.name = name;
    cluster.links_source = file;
    if (rates) cluster.rates_source = file;
    if (rates)
      for (const auto& [word, value] : *rates->as<TomlValue::Table>())
        reader.read_rate(word, value, cluster);
    if ((cluster.ranks_per_machine > 0) != (cluster.cores_per_machine > 0))
      reader.refuse("rates", rates->line,
                    "rates.ranks_per_machine and rates.cores_per_machine belong together: write "
                    "both, or neither where every rank has cores of its own");
    return cluster;
  } catch (const UserError& error) {
    if (error.place().file) throw;
    reader.refuse("levels", levels_line, error.what());
  }
}

std::string print_cluster_file(const Cluster& cluster) {
  std::string out = fmt::format("version = 1\nname = {}\nlevels = [\n", toml_string(cluster.name));
  for (size_t i = 0; i < cluster.levels.size(); ++i) {
    const Level& level = cluster.levels[i];
    out += fmt::format(
        "  {{ name = {}, size = {}, gb_per_second = {}, latency_microseconds = {}, links = {}{} "
        "}},\n",
        toml_string(level.name), i + 1 == cluster.levels.size() ? 0 : level.size,
        toml_number(level.bytes_per_second / 1e9), toml_number(level.latency_seconds * 1e6),
        level.links,
        level.processor_share > 0
            ? fmt::format(", processor_share = {}", toml_number(level.processor_share))
            : "");
  }
  out += "]\n\n[rates]\n";
  for (const NumberRate& rate : kNumberRates)
    if (cluster.*rate.field > 0)
      out += fmt::format("{} = {}\n", rate.key, toml_number(cluster.*rate.field));
  for (const IntegerRate& rate : kIntegerRates)
    if (cluster.*rate.field > 0) out += fmt::format("{} = {}\n", rate.key, cluster.*rate.field);
  return out + fmt::format("shares_cores = {}\n", cluster.shares_cores);
}

Cluster resolve_cluster(const Run& run, int64_t ranks) {
  if (run.cluster.levels.empty() && !run.cluster.file.empty()) {
    std::string text;
    try {
      text = read_file(run.cluster.file);
    } catch (const UserError& error) {
      refuse_key(run, "cluster.file", error.what());
    }
    return parse_cluster_file(text, run.cluster.file, ranks);
  }
  try {
    return make_cluster(run.cluster, ranks);
  } catch (const UserError& error) {
    refuse_key(run, run.cluster.levels.empty() ? "cluster.preset" : "cluster.levels", error.what());
  }
}

}  // namespace strait
