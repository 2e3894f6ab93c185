#include "strait/config/print.h"

#include <fmt/format.h>

#include <vector>

#include "strait/config/keys.h"

namespace strait {
namespace {

std::string section_of(const Key& key) {
  const size_t dot = key.name.rfind('.');
  return dot == std::string::npos ? "" : key.name.substr(0, dot);
}

std::string word_of(const Key& key) { return key.name.substr(key.name.rfind('.') + 1); }

/// The one of preset, file and levels that make_cluster would use.
std::string chosen_cluster_key(const Run& run) {
  if (!run.cluster.levels.empty()) return "cluster.levels";
  return run.cluster.file.empty() ? "cluster.preset" : "cluster.file";
}

/// By a placement's preset or a policy, once the cluster is known: a run file that said what was
/// filled in would keep it for another.
bool is_filled_later(const Key& key) {
  const std::string_view filler = key.filled_by;
  return filler == "placement.preset" || filler == "sync.policy";
}

bool is_printed(const Key& key, const Run& run) {
  if (key.name == "cluster.compute_share") return run.cluster.compute_share != 1;
  if (section_of(key) == "cluster") return key.name == chosen_cluster_key(run);
  return !is_filled_later(key) || run.is_set(key.name);
}

/// Markdown tables end a cell at '|'.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string default_text(const Key& key, const Run& defaults) {
  if (is_filled_later(key) && !key.rule.only_default)
    return std::string_view(key.filled_by) == "sync.policy" ? "by the policy" : "by the preset";
  return fmt::format("`{}`", value_text(key, defaults));
}

constexpr const char* kReferenceHead =
    R"(# The run file

Generated from the table of keys in `strait/config/key_table.cpp`; a test holds this page equal to
it.

A run file is TOML. Every key is optional, except that training needs `data.path`. A key at its
default is always accepted; any other value that cannot take effect is an error that names file,
line, key and the nearest valid choice. `--set KEY=VALUE` on the command line overrides a key, for
example `--set train.steps=100`: the value is read as the key's type, otherwise as a string, and
lists may be written with commas. The resolved file is kept in the run folder and can be run again.

"only the default" marks keys that are reserved: no other value can take effect in this version.
)";

}  // namespace

std::string print_run(const Run& run) {
  std::string out, section;
  for (const Key& key : run_keys()) {
    if (!is_printed(key, run)) continue;
    if (section_of(key) != section) {
      section = section_of(key);
      out += fmt::format("\n[{}]\n", section);
    }
    out += fmt::format("{} = {}\n", word_of(key), value_text(key, run));
  }
  return out;
}

std::string run_file_reference() {
  const Run defaults;
  std::string out = kReferenceHead, section = "-";
  for (const Key& key : run_keys()) {
    if (section_of(key) != section) {
      section = section_of(key);
      out += section.empty() ? std::string("\n## Top level\n\n")
                             : fmt::format("\n## [{}]\n\n", section);
      out += "| key | type | default | accepted | meaning |\n|---|---|---|---|---|\n";
    }
    out +=
        fmt::format("| `{}` | {} | {} | {} | {} |\n", word_of(key), type_name(key),
                    cell(default_text(key, defaults)), cell(rule_text(key.rule)), cell(key.about));
  }
  return out;
}

}  // namespace strait
