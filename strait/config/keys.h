// The keys of run.toml as one table: from it the file is read, checked, printed and documented.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "strait/config/run.h"
#include "strait/config/toml_tree.h"

namespace strait {

using NumberPair = double[2];

/// Where a key's value lives in a Run; its type is the type of the key.
using Field =
    std::variant<bool& (*)(Run&), int64_t& (*)(Run&), uint64_t& (*)(Run&), double& (*)(Run&),
                 std::string& (*)(Run&), std::vector<std::string>& (*)(Run&),
                 std::vector<double>& (*)(Run&), std::vector<int64_t>& (*)(Run&),
                 NumberPair& (*)(Run&), std::vector<LevelOptions>& (*)(Run&)>;

/// What a key accepts beside its default. An empty Rule accepts every value of the type.
struct Rule {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;          // least itself is not allowed
  bool below_most = false;           // most itself is not allowed
  std::vector<std::string> choices;  // texts that work; of every element for a list
  struct Form {
    std::string prefix;  // "every:" = that prefix and a whole number from `least` to `most`
    int64_t least = 1, most = 1'000'000'000;
  };
  std::vector<Form> forms;
  bool or_none = false;            // a list may be empty
  bool or_whole_number = false;    // a text that may also be written as an integer
  bool codec = false;              // a text that names a codec; of every element for a list
  bool or_path = false;            // a text with '/' or '.' is a path and also accepted
  std::vector<std::string> later;  // known words that do not work in this version
  bool only_default = false;       // reserved: no other value can take effect in this version

  /// Whether a number, which has to be finite, is in the range.
  bool contains(double number) const;
};

struct Key {
  std::string name;  // "train.steps"
  Field field;
  Rule rule;
  const char* about;           // one line for docs/run-file.md
  const char* filled_by = "";  // key whose value fills this one when it is not written
};

/// All keys, grouped by section, in the order of docs and of the resolved file.
const std::vector<Key>& run_keys();
/// nullptr when there is no such key.
const Key* find_key(const std::string& name);
/// True for "train", "placement.spans": a prefix of keys, ending at a dot.
bool is_section(const std::string& name);
/// The valid key or section nearest to a wrong one: the same last word in another section, else the
/// smallest edit distance. Long words are cut to 100 characters, so the cost is bounded.
std::string nearest_key(const std::string& wrong);

/// Type of a key for messages and docs: "an integer", "a list of strings", ...
std::string type_name(const Key& key);
/// Accepted values for docs and messages: ">= 1", "none, block, every:K", "only the default"; "" =
/// any.
std::string rule_text(const Rule& rule);

/// Assigns `value` to the key's field; UserError naming file, line, key, wanted and found on a
/// wrong type.
void read_value(const Key& key, const TomlValue& value, const std::string& file, Run& run);
/// TOML literal of the key's value.
std::string value_text(const Key& key, const Run& run);
bool same_value(const Key& key, const Run& a, const Run& b);
void copy_value(const Key& key, const Run& from, Run& to);

/// Throws UserError about a key, with the place where the run file writes it.
[[noreturn]] void refuse_key(const Run& run, const std::string& key, const std::string& message);

/// Reads one level of links; shared by cluster.levels and the cluster file.
LevelOptions read_level(const TomlValue& value, const std::string& key, const std::string& file);

}  // namespace strait
