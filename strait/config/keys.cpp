// Finding keys, and moving values between TOML, text and a Run.
#include "strait/config/keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "strait/base/errors.h"

namespace strait {
namespace {

std::string_view last_word(std::string_view name) { return name.substr(name.rfind('.') + 1); }

/// Every key behind the sections that it is the first of.
std::vector<std::string> keys_and_sections() {
  std::vector<std::string> names;
  for (const Key& key : run_keys()) {
    for (size_t dot = key.name.find('.'); dot != std::string::npos;
         dot = key.name.find('.', dot + 1))
      if (const std::string section = key.name.substr(0, dot);
          std::find(names.begin(), names.end(), section) == names.end())
        names.push_back(section);
    names.push_back(key.name);
  }
  return names;
}

template <class... Ts>
struct Overload : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overload(Ts...) -> Overload<Ts...>;

/// Calls `visitor` with the key's value in `run`.
template <class Visitor>
decltype(auto) visit_value(const Key& key, const Run& run, Visitor&& visitor) {
  // Fields are reached through a mutable Run; visitors only read.
  return std::visit(
      [&](auto field) -> decltype(auto) {
        return visitor(std::as_const(field(const_cast<Run&>(run))));
      },
      key.field);
}

/// What a wrong value was, for messages: its type and, when short, itself.
std::string found_text(const TomlValue& value) {
  if (const auto* text = value.as<std::string>(); text && text->size() <= 60)
    return fmt::format("a string ({})", toml_string(*text));
  if (const auto* integer = value.as<int64_t>()) return fmt::format("an integer ({})", *integer);
  if (const auto* number = value.as<double>()) return fmt::format("a number ({})", *number);
  if (const auto* flag = value.as<bool>()) return fmt::format("a boolean ({})", *flag);
  return value.type_name();
}

/// Throws the wrong-type error of one value.
struct WrongType {
  const std::string& key;
  const std::string& file;
  [[noreturn]] void operator()(const TomlValue& value, const std::string& wanted) const {
    ErrorPlace place;
    place.file = file;
    place.key = key;
    if (value.line > 0) place.line = value.line;
    throw UserError(fmt::format("{} wants {}, found {}", key, wanted, found_text(value)), place);
  }
};

double read_number(const TomlValue& value, const WrongType& wrong) {
  if (const auto* integer = value.as<int64_t>()) return static_cast<double>(*integer);
  const auto* number = value.as<double>();
  if (!number) wrong(value, "a number");
  if (!std::isfinite(*number)) wrong(value, "a finite number");
  return *number;
}

int64_t read_integer(const TomlValue& value, const WrongType& wrong) {
  const auto* integer = value.as<int64_t>();
  if (!integer) wrong(value, "an integer");
  return *integer;
}

std::string read_text(const TomlValue& value, const WrongType& wrong) {
  const auto* text = value.as<std::string>();
  if (!text) wrong(value, "a string");
  return *text;
}

const TomlValue::Array& read_list(const TomlValue& value, const WrongType& wrong,
                                  const char* wanted) {
  const auto* list = value.as<TomlValue::Array>();
  if (!list) wrong(value, wanted);
  return *list;
}

std::string list_text(const std::vector<std::string>& items) {
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string level_text(const LevelOptions& level) {
  return fmt::format(
      "{{ name = {}, size = {}, gb_per_second = {}, latency_microseconds = {}, links = {}{} }}",
      toml_string(level.name), level.size, toml_number(level.gb_per_second),
      toml_number(level.latency_microseconds), level.links,
      level.processor_share > 0
          ? fmt::format(", processor_share = {}", toml_number(level.processor_share))
          : "");
}

}  // namespace

const Key* find_key(const std::string& name) {
  static const std::unordered_map<std::string_view, const Key*> by_name = [] {
    std::unordered_map<std::string_view, const Key*> keys;
    for (const Key& key : run_keys()) keys.emplace(key.name, &key);
    return keys;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

bool is_section(const std::string& name) {
  return std::any_of(run_keys().begin(), run_keys().end(), [&](const Key& key) {
    return key.name.size() > name.size() && key.name[name.size()] == '.' &&
           key.name.starts_with(name);
  });
}

std::string nearest_key(const std::string& wrong) {
  static const std::vector<std::string> candidates = keys_and_sections();
  const std::string word = wrong.substr(0, 100);
  const std::string_view last = last_word(word);
  for (const Key& key : run_keys())
    if (last_word(key.name) == last) return key.name;
  return nearest_choice(word, candidates);
}

std::string type_name(const Key& key) {
  static constexpr const char* kNames[] = {
      "a boolean",   "an integer",        "an integer",        "a number",
      "a string",    "a list of strings", "a list of numbers", "a list of integers",
      "two numbers", "a list of levels"};
  static_assert(std::size(kNames) == std::variant_size_v<Field>);
  return kNames[key.field.index()];
}

bool Rule::contains(double number) const {
  const bool low = above_least ? number > least : number >= least;
  const bool high = below_most ? number < most : number <= most;
  return low && high && std::isfinite(number);
}

std::string rule_text(const Rule& rule) {
  if (rule.only_default) return "only the default";
  if (rule.or_whole_number && rule.choices.empty()) return "none, a level, a number";
  if (rule.codec) return "a codec";
  std::vector<std::string> parts = rule.choices;
  for (const Rule::Form& form : rule.forms) parts.push_back(form.prefix + "N");
  if (rule.or_path) parts.push_back("a path");
  if (!parts.empty()) return fmt::format("{}", fmt::join(parts, ", "));
  const bool low = std::isfinite(rule.least),
             high = rule.most < 1e9;  // larger bounds only guard products
  if (low && rule.least == rule.most) return fmt::format("{}", rule.least);
  if (low && high)
    return fmt::format("{}{}, {}{}", rule.above_least ? '(' : '[', rule.least, rule.most,
                       rule.below_most ? ')' : ']');
  if (low) return fmt::format("{} {}", rule.above_least ? ">" : ">=", rule.least);
  return "";
}

LevelOptions read_level(const TomlValue& value, const std::string& key, const std::string& file) {
  const WrongType wrong{key, file};
  const auto* table = value.as<TomlValue::Table>();
  if (!table)
    wrong(value,
          "a table { name, size, gb_per_second, latency_microseconds, links, processor_share }");
  LevelOptions level;
  for (const auto& [name, member] : *table) {
    const std::string member_key = key + "." + name;
    const WrongType wrong_member{member_key, file};
    if (name == "name") {
      level.name = read_text(member, wrong_member);
    } else if (name == "size") {
      level.size = read_integer(member, wrong_member);
    } else if (name == "gb_per_second") {
      level.gb_per_second = read_number(member, wrong_member);
    } else if (name == "latency_microseconds") {
      level.latency_microseconds = read_number(member, wrong_member);
    } else if (name == "links") {
      level.links = read_integer(member, wrong_member);
    } else if (name == "processor_share") {
      level.processor_share = read_number(member, wrong_member);
    } else {
      static const std::vector<std::string> known = {
          "name", "size", "gb_per_second", "latency_microseconds", "links", "processor_share"};
      ErrorPlace place;
      place.file = file;
      place.key = member_key;
      if (member.line > 0) place.line = member.line;
      throw UserError(fmt::format("unknown key \"{}\"; the nearest key is \"{}.{}\"", member_key,
                                  key, nearest_choice(name.substr(0, 100), known)),
                      place);
    }
  }
  return level;
}

void read_value(const Key& key, const TomlValue& value, const std::string& file, Run& run) {
  const WrongType wrong{key.name, file};
  const std::string wanted = type_name(key);
  const auto list = [&]() -> const TomlValue::Array& {
    return read_list(value, wrong, wanted.c_str());
  };
  const Overload reader{
      [&](bool& target) {
        const auto* flag = value.as<bool>();
        if (!flag) wrong(value, wanted + " (true or false)");
        target = *flag;
      },
      [&](int64_t& target) { target = read_integer(value, wrong); },
      [&](uint64_t& target) {
        const int64_t integer = read_integer(value, wrong);
        if (integer < 0) wrong(value, "an integer >= 0");
        target = static_cast<uint64_t>(integer);
      },
      [&](double& target) { target = read_number(value, wrong); },
      [&](std::string& target) {
        const auto* integer = value.as<int64_t>();
        target = key.rule.or_whole_number && integer ? fmt::format("{}", *integer)
                                                     : read_text(value, wrong);
      },
      [&](std::vector<std::string>& target) {
        target.clear();
        for (const TomlValue& element : list()) target.push_back(read_text(element, wrong));
      },
      [&](std::vector<double>& target) {
        target.clear();
        for (const TomlValue& element : list()) target.push_back(read_number(element, wrong));
      },
      [&](std::vector<int64_t>& target) {
        target.clear();
        for (const TomlValue& element : list()) target.push_back(read_integer(element, wrong));
      },
      [&](NumberPair& target) {
        if (list().size() != 2) wrong(value, "a list of two numbers");
        for (size_t i = 0; i < 2; ++i) target[i] = read_number(list()[i], wrong);
      },
      [&](std::vector<LevelOptions>& target) {
        target.clear();
        for (const TomlValue& element : list())
          target.push_back(read_level(element, key.name, file));
      },
  };
  std::visit([&](auto field) { reader(field(run)); }, key.field);
}

std::string value_text(const Key& key, const Run& run) {
  const Overload writer{
      [](bool value) { return std::string(value ? "true" : "false"); },
      [](int64_t value) { return fmt::format("{}", value); },
      [](uint64_t value) { return fmt::format("{}", value); },
      [](double value) { return toml_number(value); },
      [](const std::string& value) { return toml_string(value); },
      [](const NumberPair& value) {
        return list_text({toml_number(value[0]), toml_number(value[1])});
      },
      [](const std::vector<std::string>& values) {
        std::vector<std::string> items;
        for (const std::string& value : values) items.push_back(toml_string(value));
        return list_text(items);
      },
      [](const std::vector<double>& values) {
        std::vector<std::string> items;
        for (const double value : values) items.push_back(toml_number(value));
        return list_text(items);
      },
      [](const std::vector<int64_t>& values) {
        return fmt::format("[{}]", fmt::join(values, ", "));
      },
      [](const std::vector<LevelOptions>& levels) {
        std::vector<std::string> items;
        for (const LevelOptions& level : levels) items.push_back("\n  " + level_text(level));
        return levels.empty() ? std::string("[]") : fmt::format("[{}\n]", fmt::join(items, ","));
      },
  };
  return visit_value(key, run, writer);
}

bool same_value(const Key& key, const Run& a, const Run& b) {
  const auto same_number = [](double x, double y) {  // as literals: 0.0 is not -0.0
    return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y);
  };
  const Overload same{
      [&](double x, double y) { return same_number(x, y); },
      [&](const std::vector<double>& x, const std::vector<double>& y) {
        return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_number);
      },
      [&](const NumberPair& x, const NumberPair& y) {
        return same_number(x[0], y[0]) && same_number(x[1], y[1]);
      },
      [&](const std::vector<LevelOptions>&, const std::vector<LevelOptions>&) {
        return value_text(key, a) == value_text(key, b);
      },
      [](const auto& x, const auto& y) { return x == y; },
  };
  return std::visit(
      [&](auto field) {
        return same(std::as_const(field(const_cast<Run&>(a))),
                    std::as_const(field(const_cast<Run&>(b))));
      },
      key.field);
}

void copy_value(const Key& key, const Run& from, Run& to) {
  std::visit(
      [&](auto field) {
        auto& source = field(const_cast<Run&>(from));
        auto& target = field(to);
        if constexpr (std::is_array_v<std::remove_reference_t<decltype(source)>>)
          std::copy(std::begin(source), std::end(source), std::begin(target));
        else
          target = source;
      },
      key.field);
}

void refuse_key(const Run& run, const std::string& key, const std::string& message) {
  ErrorPlace place;
  place.key = key;
  if (!run.file.empty()) place.file = run.file;
  if (const auto found = run.written.find(key); found != run.written.end()) {
    place.file = found->second.file;
    if (found->second.line > 0) place.line = found->second.line;
  }
  throw UserError(message, place);
}

}  // namespace strait
