// The only file that includes toml++.
#include "strait/config/toml_tree.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>

#include "strait/base/errors.h"

namespace strait {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;
constexpr int64_t kMostDots = 64;

[[noreturn]] void refuse(const std::string& message, const std::string& file, int64_t line) {
  ErrorPlace place;
  place.file = file;
  if (line > 0) place.line = line;
  throw UserError(message, place);
}

/// A key such as a.a.a. ... makes one table per dot, and tables are destroyed recursively: a long
/// one would exhaust the stack. So dots outside quotes are counted between the characters that end
/// a key.
void check_depth(std::string_view text, const std::string& file) {
  int64_t dots = 0, line = 1;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      quote = 0;
      dots = 0;
    } else if (quote != 0) {
      if (c == '\\' && quote == '"') ++i;
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '.') {
      if (++dots > kMostDots)
        refuse(fmt::format("a key of more than {} dots", kMostDots), file, line);
    } else if (std::string_view("=,{}[]#").find(c) != std::string_view::npos) {
      dots = 0;
    }
  }
}

TomlValue convert(const toml::node& node, int64_t line);

TomlValue::Table convert_table(const toml::table& table) {
  TomlValue::Table result;
  for (auto&& [key, node] : table)
    result.emplace_back(std::string(key.str()),
                        convert(node, static_cast<int64_t>(key.source().begin.line)));
  std::stable_sort(result.begin(), result.end(),
                   [](const auto& a, const auto& b) { return a.second.line < b.second.line; });
  return result;
}

TomlValue convert(const toml::node& node, int64_t line) {
  TomlValue result;
  result.line = line > 0 ? line : static_cast<int64_t>(node.source().begin.line);
  if (const auto* table = node.as_table()) {
    result.value = convert_table(*table);
  } else if (const auto* array = node.as_array()) {
    TomlValue::Array elements;
    for (const toml::node& element : *array) elements.push_back(convert(element, 0));
    result.value = std::move(elements);
  } else if (const auto* text = node.as_string()) {
    result.value = text->get();
  } else if (const auto* integer = node.as_integer()) {
    result.value = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    result.value = number->get();
  } else if (const auto* flag = node.as_boolean()) {
    result.value = flag->get();
  } else {
    result.value = TomlValue::Other{"a date or time"};
  }
  return result;
}

}  // namespace

std::string TomlValue::type_name() const {
  if (as<bool>()) return "a boolean";
  if (as<int64_t>()) return "an integer";
  if (as<double>()) return "a number";
  if (as<std::string>()) return "a string";
  if (as<Array>()) return "a list";
  if (as<Table>()) return "a table";
  return std::get<Other>(value).type;
}

TomlValue parse_toml(std::string_view text, const std::string& file) {
  if (text.size() > kMostBytes)
    refuse(fmt::format("{} bytes are too many for a TOML file of settings; the most is {}",
                       text.size(), kMostBytes),
           file, 0);
  check_depth(text, file);
  try {
    const toml::table table = toml::parse(text, file);
    TomlValue result;
    result.value = convert_table(table);
    return result;
  } catch (const toml::parse_error& error) {
    refuse(fmt::format("not valid TOML: {}", error.description()), file,
           static_cast<int64_t>(error.source().begin.line));
  }
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04X}", static_cast<uint8_t>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string toml_number(double value) {
  std::string text = fmt::format("{}", value);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace strait
