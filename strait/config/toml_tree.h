// TOML text as a plain tree with line numbers, and TOML literals of values. The only door to
// toml++.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace strait {

/// A value of a TOML document. Tables keep the order of the file; dates are kept as `Other`.
struct TomlValue {
  struct Other {
    std::string type;  // "a date or time"
  };
  using Array = std::vector<TomlValue>;
  struct Member;  // {name, value}
  using Table = std::vector<Member>;
  std::variant<bool, int64_t, double, std::string, Array, Table, Other> value;
  int64_t line = 0;  // 1-based line of the key (of the element inside arrays)

  template <class T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  /// "an integer", "a string", ... for messages.
  std::string type_name() const;
};

struct TomlValue::Member {
  std::string name;
  TomlValue value;
};

/// Parses a document into its top table. UserError with file and line when it is not TOML 1.0,
/// larger than 1 MiB, or nested deeper than 64 dots or 256 brackets.
TomlValue parse_toml(std::string_view text, const std::string& file);

/// `text` as a TOML basic string with quotes; control characters are escaped.
std::string toml_string(std::string_view text);
/// Shortest decimal that reads back as the same double; always a TOML float ("1.0", "1e-08").
std::string toml_number(double value);

}  // namespace strait
