// Random run files over the whole table of keys, and what verify, simulate and plan make of them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <sstream>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "strait/base/file.h"
#include "strait/base/random.h"
#include "strait/cli/program_commands.h"
#include "strait/cli/run_command.h"
#include "strait/config/keys.h"

namespace strait::testing {

/// Draws values for keys: mostly such as the table accepts, sometimes beyond, sometimes extreme.
class RandomRun {
 public:
  explicit RandomRun(uint64_t seed) : stream_(seed, "tests.random_run") {}

  /// `key=value` for each of a few keys, for --set.
  std::vector<std::string> settings() {
    std::vector<std::string> out;
    const uint64_t count = 1 + below(below(4) == 0 ? 6 : 2);
    for (uint64_t i = 0; i < count; ++i) {
      const Key& key = run_keys()[below(run_keys().size())];
      out.push_back(key.name + "=" + value(key));
    }
    return out;
  }

  int64_t ranks() {
    constexpr std::array<int64_t, 10> kRanks = {1, 1, 2, 2, 3, 4, 8, 16, 64, 1'000'000};
    return kRanks[below(kRanks.size())];
  }

  uint64_t below(uint64_t bound) { return stream_.below(next_++, bound); }

 private:
  template <class T>
  static std::string literal(const T& value) {
    return fmt::format("{}", value);
  }

  std::string number(const Rule& rule, bool whole) {
    constexpr std::array<double, 14> kNumbers = {0,  1,   2,   3,      4,      8,  16,
                                                 64, 100, 1e6, 0x1p31, 0x1p62, -1, 0.5};
    double drawn = kNumbers[below(kNumbers.size())];
    if (below(4) > 0) drawn = std::clamp(drawn, rule.least, rule.most);
    if (whole) return literal(static_cast<int64_t>(drawn));
    return fmt::format("{:.17g}", drawn);
  }

  std::string word(const Rule& rule) {
    if (!rule.choices.empty() && below(8) > 0) return rule.choices[below(rule.choices.size())];
    if (!rule.forms.empty() && below(2) > 0) {
      const Rule::Form& form = rule.forms[below(rule.forms.size())];
      return form.prefix + literal(form.least + static_cast<int64_t>(below(4)));
    }
    constexpr std::array kWords = {"",         "none", "bf16", "int8:32",  "every:0", "x",
                                   "frontier", "/",    "a b",  "\xc3\xa9", "auto",    "localhost"};
    return kWords[below(kWords.size())];
  }

  template <class Draw>
  std::string list(const Draw& draw) {
    std::string out = "[";
    for (uint64_t i = below(4); i > 0; --i) out += draw() + (i > 1 ? ", " : "");
    return out + "]";
  }

  std::string value(const Key& key) {
    const auto quoted = [&] { return "\"" + word(key.rule) + "\""; };
    const auto fraction = [&] { return number(key.rule, false); };
    return std::visit(
        [&](auto field) -> std::string {
          using T = std::remove_reference_t<std::invoke_result_t<decltype(field), Run&>>;
          if constexpr (std::is_same_v<T, bool>) return below(2) == 0 ? "true" : "false";
          if constexpr (std::is_integral_v<T>) return number(key.rule, true);
          if constexpr (std::is_same_v<T, double>) return fraction();
          if constexpr (std::is_same_v<T, std::string>) return quoted();
          if constexpr (std::is_same_v<T, std::vector<std::string>>) return list(quoted);
          if constexpr (std::is_same_v<T, std::vector<double>>) return list(fraction);
          if constexpr (std::is_same_v<T, NumberPair>)
            return "[" + fraction() + ", " + fraction() + "]";
          return "[{name=\"a\", fan_out=" + literal(1 + below(4)) +
                 ", bandwidth_gbit_s=" + literal(below(3)) + "}]";
        },
        key.field);
  }

  RandomStream stream_;
  uint64_t next_ = 0;
};

struct RandomRunResult {
  int code = 0;
  double seconds = 0;  // of processors, so that a busy machine does not count
  std::string command, error;
};

/// One of verify, simulate and plan on the run of `seed`; `file` is a run file that is right.
inline RandomRunResult try_random_run(uint64_t seed, const std::string& file) {
  RandomRun random(seed);
  constexpr std::array kCommands = {"verify", "simulate", "verify", "simulate", "plan"};
  std::vector<std::string> arguments = {kCommands[seed % kCommands.size()], file, "--ranks",
                                        std::to_string(random.ranks())};
  for (const std::string& setting : random.settings()) {
    arguments.push_back("--set");
    arguments.push_back(setting);
  }
  RandomRunResult result;
  for (const std::string& argument : arguments) result.command += " '" + argument + "'";
  std::ostringstream out, error;
  const std::clock_t begin = std::clock();
  result.code = cli::run_command(arguments, cli::program_commands(), {out, error});
  result.seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  result.error = error.str();
  return result;
}

/// The least that trains, and names itself as its text.
inline std::string base_run(const std::string& file) {
  return fmt::format("[model]\npreset = \"nano-char\"\n[data]\npath = \"{}\"\n[train]\nsteps = 3\n",
                     file);
}

}  // namespace strait::testing
