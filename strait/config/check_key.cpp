#include "strait/config/check_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "strait/base/errors.h"
#include "strait/codec/codec.h"

namespace strait {
namespace {

const Run kDefaults;

/// "a number above 0" where the border itself is not allowed, else the border.
std::string nearest_number(double value, const Rule& rule) {
  if (value <= rule.least)
    return rule.above_least ? fmt::format("above {}", rule.least) : fmt::format("{}", rule.least);
  return rule.below_most ? fmt::format("below {}", rule.most) : fmt::format("{}", rule.most);
}

void check_number(const Key& key, const Run& run, double value) {
  const Rule& rule = key.rule;
  if (rule.contains(value)) return;
  refuse_key(run, key.name,
             fmt::format("{} = {} is out of range ({}); the nearest valid value is {}", key.name,
                         value, rule_text(rule), nearest_number(value, rule)));
}

[[noreturn]] void refuse_form(const Key& key, const Run& run, const std::string& text,
                              const Rule::Form& form, bool too_large) {
  refuse_key(
      run, key.name,
      fmt::format("{} = {}: after \"{}\" comes a whole number {} {}; the nearest valid value "
                  "is \"{}{}\"",
                  key.name, toml_string(text), form.prefix,
                  too_large ? "<=" : ">=", too_large ? form.most : form.least, form.prefix,
                  too_large ? form.most : form.least));
}

/// True for "every:2"; refuses "every:0" and "every:x".
bool fits_form(const Key& key, const Run& run, const std::string& text) {
  for (const Rule::Form& one : key.rule.forms) {
    const std::string& form = one.prefix;
    if (!text.starts_with(form)) continue;
    if (form.empty() && (text.empty() || text.front() < '0' || text.front() > '9')) continue;
    int64_t number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data() + form.size(), end, number);
    const bool whole = stop == end && stop != text.data() + form.size();
    const bool too_large =
        whole && (code != std::errc() || number > one.most) && text[form.size()] != '-';
    if (whole && code == std::errc() && number >= one.least && !too_large) return true;
    refuse_form(key, run, text, one, too_large);
  }
  return false;
}

void check_text(const Key& key, const Run& run, const std::string& text) {
  const Rule& rule = key.rule;
  if (rule.codec) {
    try {
      codec::parse_codec(text, key.name);
    } catch (const UserError& wrong) {
      refuse_key(run, key.name, wrong.what());
    }
  }
  if (rule.choices.empty()) return;
  if (std::find(rule.choices.begin(), rule.choices.end(), text) != rule.choices.end()) return;
  if (rule.or_path && text.find_first_of("/.") != std::string::npos) return;
  if (fits_form(key, run, text)) return;
  if (std::find(rule.later.begin(), rule.later.end(), text) != rule.later.end())
    refuse_key(
        run, key.name,
        fmt::format("{} = {} is not available in this version; the nearest valid value is {} ({})",
                    key.name, toml_string(text), value_text(key, kDefaults), rule_text(rule)));
  refuse_key(
      run, key.name,
      fmt::format("{} = {} is unknown; the nearest valid value is {} ({}){}", key.name,
                  toml_string(text), toml_string(nearest_choice(text.substr(0, 100), rule.choices)),
                  rule_text(rule),
                  rule.or_path ? fmt::format(", or ./{} as a path", text.substr(0, 100)) : ""));
}

void check_texts(const Key& key, const Run& run, const std::vector<std::string>& texts) {
  if (texts.empty() && !key.rule.or_none)
    refuse_key(run, key.name,
               fmt::format("{} is empty; the nearest valid value is [{}]", key.name,
                           toml_string(key.rule.codec ? "none" : key.rule.choices.front())));
  std::set<std::string> seen;
  for (const std::string& text : texts) {
    check_text(key, run, text);
    if (!seen.insert(text).second && !key.rule.codec)
      refuse_key(run, key.name,
                 fmt::format("{} names {} twice; name it once", key.name, toml_string(text)));
  }
}

struct Checker {
  const Key& key;
  const Run& run;
  void operator()(bool) const {}
  void operator()(int64_t value) const { check_number(key, run, static_cast<double>(value)); }
  void operator()(uint64_t) const {}
  void operator()(double value) const { check_number(key, run, value); }
  void operator()(const std::string& value) const { check_text(key, run, value); }
  void operator()(const std::vector<std::string>& values) const { check_texts(key, run, values); }
  void operator()(const std::vector<double>& values) const {
    for (const double value : values) check_number(key, run, value);
  }
  void operator()(const std::vector<int64_t>& values) const {
    for (const int64_t value : values) check_number(key, run, static_cast<double>(value));
  }
  void operator()(const NumberPair& pair) const {
    for (const double value : pair) check_number(key, run, value);
  }
  void operator()(const std::vector<LevelOptions>&) const {}  // by make_cluster
};

}  // namespace

void check_key(const Key& key, const Run& run) {
  if (same_value(key, run, kDefaults)) return;
  if (key.rule.only_default)
    refuse_key(run, key.name,
               fmt::format("{} = {} cannot take effect in this version; the valid value is {}",
                           key.name, value_text(key, run), value_text(key, kDefaults)));
  const Checker checker{key, run};
  std::visit([&](auto field) { checker(std::as_const(field(const_cast<Run&>(run)))); }, key.field);
}

}  // namespace strait
