#include "strait/config/parse.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/config/keys.h"
#include "strait/shape/modules.h"
#include "strait/shape/shape.h"
#include "strait/shape/unet.h"
#include "strait/topology/cluster.h"

namespace strait {
namespace {

const std::string kCommandLine = "--set";
const char* const kClusterKeys[] = {"cluster.preset", "cluster.file", "cluster.levels"};

[[noreturn]] void refuse(const std::string& message, const std::string& key, const KeyPlace& at) {
  ErrorPlace place;
  place.file = at.file;
  place.key = key;
  if (at.line > 0) place.line = at.line;
  throw UserError(message, place);
}

/// Where and as what a value was written.
class Reader {
 public:
  Reader(Run& run, std::string file, Problems& problems)
      : run_(run), file_(std::move(file)), problems_(problems) {}

  /// Reads every key below `prefix`. One that cannot be read stays as it is.
  void read_table(const TomlValue::Table& table, const std::string& prefix) {
    for (const auto& [word, value] : table)
      problems_.attempt([&, &word = word, &value = value] {
        read_entry(prefix.empty() ? word : prefix + "." + word, value);
      });
  }

 private:
  void read_entry(const std::string& name, const TomlValue& value) {
    if (const Key* key = find_key(name)) {
      read_value(*key, value, file_, run_);
      run_.written[name] = {file_, value.line};
    } else if (const auto* below = value.as<TomlValue::Table>(); below && is_section(name)) {
      read_table(*below, name);
    } else {
      refuse_name(name, value);
    }
  }
  [[noreturn]] void refuse_name(const std::string& name, const TomlValue& value) const {
    if (is_section(name))
      refuse(
          fmt::format("{0} is a section: wants a table, found {1}; write [{0}] and its keys below",
                      name, value.type_name()),
          name, {file_, value.line});
    const char* what = value.as<TomlValue::Table>() ? "section" : "key";
    refuse(fmt::format("unknown {} \"{}\"; the nearest is \"{}\"", what, name, nearest_key(name)),
           name, {file_, value.line});
  }

  Run& run_;
  std::string file_;
  Problems& problems_;
};

/// `text` as one TOML value, or nothing when it is none.
std::optional<TomlValue> parse_value(const std::string& text) {
  try {
    TomlValue top = parse_toml("value = " + text, kCommandLine);
    auto& table = std::get<TomlValue::Table>(top.value);
    if (table.size() != 1) return std::nullopt;  // a line break smuggled in more keys
    table[0].value.line = 0;
    return std::move(table[0].value);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

TomlValue text_value(std::string text, const std::string& key) {
  if (!parse_value(toml_string(text)))
    refuse(fmt::format("the value of {} is not valid UTF-8", key), key, {kCommandLine, 0});
  TomlValue value;
  value.value = std::move(text);
  return value;
}

bool is_quoted(const std::string& text) {
  return text.size() >= 2 && (text[0] == '"' || text[0] == '\'') && text.back() == text[0];
}

/// "a,b" as a list of strings, or of numbers where elements are numbers.
TomlValue comma_list(const std::string& text, const Key& key) {
  const bool strings = std::holds_alternative<std::vector<std::string>& (*)(Run&)>(key.field);
  TomlValue::Array elements;
  for (size_t begin = 0; begin <= text.size() && !text.empty();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const auto parsed = strings ? std::nullopt : parse_value(item);
    elements.push_back(parsed ? *parsed : text_value(item, key.name));
    begin = end + 1;
  }
  TomlValue list;
  list.value = std::move(elements);
  return list;
}

/// The value of --set as the key's type wants it, otherwise as a string.
TomlValue setting_value(const Key& key, const std::string& text) {
  const bool is_text = std::holds_alternative<std::string& (*)(Run&)>(key.field);
  const bool is_list =
      type_name(key).find("list") != std::string::npos || type_name(key) == "two numbers";
  if (is_list && !text.starts_with("[")) return comma_list(text, key);
  if (!is_text || is_quoted(text))
    if (auto parsed = parse_value(text)) return std::move(*parsed);
  return text_value(text, key.name);
}

bool is_set_by_hand(const Run& run, const std::string& key) {
  const auto written = run.written.find(key);
  return written != run.written.end() && written->second.file == kCommandLine &&
         !same_value(*find_key(key), run, Run());
}

/// A cluster choice on the command line replaces the one of the file.
void forget_other_clusters(const std::string& chosen, Run& run) {
  const Run defaults;
  for (const char* other : kClusterKeys) {
    if (other == chosen) continue;
    if (is_set_by_hand(run, other)) {
      if (same_value(*find_key(chosen), run, defaults)) continue;
      refuse_key(run, other,
                 fmt::format("{} is set beside {}, and one cluster can take effect; leave one of "
                             "them out",
                             other, chosen));
    }
    copy_value(*find_key(other), defaults, run);
    run.written.erase(other);
  }
}

void apply_setting(const std::string& setting, Run& run, Problems& problems) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos || equals == 0)
    refuse(fmt::format("--set {}: wants KEY=VALUE, for example train.steps=100", setting), setting,
           {kCommandLine, 0});
  const std::string name = setting.substr(0, equals), text = setting.substr(equals + 1);
  if (const Key* key = find_key(name)) {
    read_value(*key, setting_value(*key, text), kCommandLine, run);
    run.written[name] = {kCommandLine, 0};
  } else if (auto table = is_section(name) ? parse_value(text) : std::nullopt;
             table && table->as<TomlValue::Table>()) {
    for (auto& member : std::get<TomlValue::Table>(table->value)) member.value.line = 0;
    Reader(run, kCommandLine, problems).read_table(*table->as<TomlValue::Table>(), name);
  } else {
    const std::string nearest = is_section(name) ? name + ".KEY" : nearest_key(name);
    refuse(fmt::format("unknown key \"{}\"; the nearest is \"{}\"", name, nearest), name,
           {kCommandLine, 0});
  }
  if (std::find(std::begin(kClusterKeys), std::end(kClusterKeys), name) != std::end(kClusterKeys))
    forget_other_clusters(name, run);
}

/// What the preset of one family fills has no place in another.
void fit_to_family(Run& run, const ModelOptions& preset) {
  if (run.model.family == preset.family || !is_family(run.model.family)) return;
  const BlockStyle style = block_style(run.model.family);
  const auto reset = [&](bool drops, std::string_view prefix) {
    for (const Key& key : run_keys())
      if (drops && std::string_view(key.name).starts_with(prefix) && !run.is_set(key.name))
        copy_value(key, Run(), run);
  };
  reset(!style.rotary, "model.rope.");
  reset(!style.rotary, "model.shape.head_width");
  reset(!style.windows, "model.shape.window");
  reset(!style.alternates, "model.shape.window_pattern");
  reset(!style.local_rope, "model.rope.local_theta");
  reset(!style.query_scalar, "model.shape.query_scalar");
  reset(!style.score_cap, "model.shape.score_cap");
  reset(!style.logit_cap, "model.shape.logit_cap");
  if (!run.is_set("model.shape.bias") && style.biases != Biases::kAll)
    run.model.shape.bias = style.biases == Biases::kQkv;
}

/// The chain of a family that has one. UserError, with its place in the run file.
std::shared_ptr<const ModuleChain> chain_of(const Run& run) {
  try {
    return run.model.family == kUnetFamily ? unet_chain(run.model.unet)
                                           : read_modules(run.model.path);
  } catch (UserError& error) {
    const auto written = run.written.find(error.place().key.value_or(""));
    if (written != run.written.end()) refuse(error.what(), written->first, written->second);
    throw;
  }
}

/// What a chain fills: its sizes. Keys that are written keep their values, which validate_run
/// compares.
void fill_from_chain(Run& run) {
  run.model.modules = chain_of(run);
  Run filled;
  filled.model.shape = modules_options(*run.model.modules);
  for (const Key& key : run_keys())
    if ((key.name.starts_with("model.shape.") || key.name.starts_with("model.rope.")) &&
        !run.is_set(key.name))
      copy_value(key, filled, run);
  if (run.train.recompute == TrainOptions().recompute) run.train.recompute = "block";
}

void fill_model(Run& run) {
  if (run.model.family == kModulesFamily) return fill_from_chain(run);
  Run filled;
  try {
    filled.model = model_preset(run.model.preset);
  } catch (const UserError& error) {
    refuse_key(run, "model.preset", error.what());
  }
  for (const Key& key : run_keys())
    if (std::string_view(key.filled_by) == "model.preset" && !run.is_set(key.name))
      copy_value(key, filled, run);
  if (run.model.family == kUnetFamily) return fill_from_chain(run);
  const ShapeOptions& preset = filled.model.shape;
  const bool follows = run.model.family == "gpt2" || preset.kv_heads == preset.heads;
  if (follows && !run.is_set("model.shape.kv_heads"))
    run.model.shape.kv_heads = run.model.shape.heads;
  fit_to_family(run, filled.model);
  if (run.model.shape.window == 0 && !run.is_set("model.shape.window_pattern"))
    run.model.shape.window_pattern = 0;
}

}  // namespace

Run parse_run(std::string_view text, const std::string& file, const std::vector<std::string>& sets,
              Problems& problems) {
  Run run;
  run.file = file;
  problems.attempt([&] {
    const TomlValue top = parse_toml(text, file);
    Reader(run, file, problems).read_table(*top.as<TomlValue::Table>(), "");
  });
  for (const std::string& setting : sets)
    problems.attempt([&] { apply_setting(setting, run, problems); });
  problems.attempt([&] { fill_model(run); });
  if (!run.is_set("optimizer.minimum_learning_rate"))
    run.optimizer.minimum_learning_rate =
        std::min(run.optimizer.minimum_learning_rate, run.optimizer.learning_rate);
  // So that a resolved run file says what holds, and can be run again.
  if (!run.is_set("placement.prefetch_units") && !run.tensor.overlaps("oag"))
    run.placement.prefetch_units = 0;
  return run;
}

Run parse_run(std::string_view text, const std::string& file,
              const std::vector<std::string>& sets) {
  Problems problems;
  Run run = parse_run(text, file, sets, problems);
  problems.throw_first();
  return run;
}

Run load_run(const std::string& path, const std::vector<std::string>& sets) {
  return parse_run(read_file(path), path, sets);
}

Run load_run_on(const std::string& cluster, const std::string& path,
                const std::vector<std::string>& sets) {
  const std::string setting = cluster_setting(cluster);
  const Run own = load_run(path, sets), chosen = parse_run("", "", {setting});
  for (const char* key : kClusterKeys)
    if (is_set_by_hand(own, key) && !same_value(*find_key(key), own, chosen))
      refuse_key(
          own, key,
          fmt::format("{} is set beside --cluster {}, and one cluster can take effect; leave "
                      "one of them out",
                      key, cluster));
  std::vector<std::string> all = sets;
  all.push_back(setting);
  return load_run(path, all);
}

std::string cluster_setting(const std::string& preset_or_file) {
  const auto& presets = cluster_preset_names();
  if (std::find(presets.begin(), presets.end(), preset_or_file) != presets.end())
    return "cluster.preset=" + preset_or_file;
  if (preset_or_file.find_first_of("/.") != std::string::npos)
    return "cluster.file=" + preset_or_file;
  ErrorPlace place;
  place.key = "--cluster";
  throw UserError(
      fmt::format("--cluster {}: neither a preset nor a file; the nearest preset is \"{}\" ({})",
                  preset_or_file, nearest_choice(preset_or_file, presets),
                  fmt::join(presets, ", ")),
      place);
}

}  // namespace strait
