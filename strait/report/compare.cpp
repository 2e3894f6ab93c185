#include "strait/report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "strait/base/errors.h"
#include "strait/report/metrics.h"
#include "strait/report/plots.h"
#include "strait/report/quantities.h"

namespace strait::report {
namespace {

double number(const Json& figures, const char* key) {
  const Json& value = figures.at(key);
  return value.is_number() ? value.as_number() : kUnknown;
}

std::string plain_text(double value) { return fmt::format("{:.4f}", value); }

/// A line of the table.
struct Row {
  const char* title;
  double (*value)(const Json& figures);
  std::string (*text)(double value);
};

double sent_bytes(const Json& figures) {
  double sum = 0;
  for (const Json& level : figures.at("bytes_per_step").as_array())
    sum += number(level, "payload_bytes");
  return sum;
}

constexpr Row kRows[] = {
    {"steps", [](const Json& run) { return number(run, "steps"); }, count_text},
    {"training loss", [](const Json& run) { return number(run, "train_loss"); }, plain_text},
    {"validation loss", [](const Json& run) { return number(run, "validation_loss"); }, plain_text},
    {"best of them", [](const Json& run) { return number(run, "best_validation_loss"); },
     plain_text},
    {"step, median", [](const Json& run) { return number(run.at("seconds_per_step"), "median"); },
     seconds_text},
    {"predicted", [](const Json& run) { return number(run, "predicted_seconds_per_step"); },
     seconds_text},
    {"tokens/s", [](const Json& run) { return number(run, "tokens_per_second"); }, count_text},
    {"MFU", [](const Json& run) { return number(run, "model_flops_utilization"); }, share_text},
    {"exposed", [](const Json& run) { return number(run, "exposed_communication_share"); },
     share_text},
    {"sent per step", sent_bytes, bytes_text},
    {"memory", [](const Json& run) { return number(run, "peak_memory_bytes"); }, bytes_text},
};

/// What tells the runs apart: the last name of each path, or all of it where two are the same.
std::vector<std::string> names_of(const std::vector<std::string>& run_dirs) {
  std::vector<std::string> names;
  for (const std::string& path : run_dirs)
    names.push_back(std::filesystem::path(path + "/").lexically_normal().parent_path().filename());
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  const bool unique = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  return unique ? names : run_dirs;
}

std::string table(const std::vector<Json>& runs, const std::vector<std::string>& names) {
  const auto cell = [&](size_t run, const std::string& text) {
    return fmt::format("  {:>{}}", text, std::max<size_t>(12, names[run].size()));
  };
  std::string text = fmt::format("{:<16}", "");
  for (size_t run = 0; run < runs.size(); ++run) text += cell(run, names[run]);
  for (const Row& row : kRows) {
    text += fmt::format("\n{:<16}", row.title);
    for (size_t run = 0; run < runs.size(); ++run) {
      const double value = row.value(runs[run]);
      text += cell(run, value == value ? row.text(value) : "-");
    }
  }
  return text;
}

std::vector<NamedSteps> steps_of(const std::vector<std::string>& run_dirs,
                                 const std::vector<std::string>& names) {
  std::vector<NamedSteps> all;
  for (size_t run = 0; run < run_dirs.size(); ++run)
    all.push_back({names[run], read_metrics(run_dirs[run] + "/metrics.jsonl")});
  return all;
}

}  // namespace

RunReport compare_runs(const std::vector<std::string>& run_dirs, const ReportOptions& options) {
  const std::vector<std::string> names = names_of(run_dirs);
  std::vector<Json> runs;
  for (const std::string& run_dir : run_dirs) runs.push_back(run_figures(run_dir));
  RunReport report{Json::object({{"plots", Json::array()}, {"plots_error", Json()}}),
                   table(runs, names)};
  report.summary["runs"] = Json(runs);
  if (options.folder.empty()) return report;
  try {
    report.summary["plots"] =
        Json(draw_comparison(steps_of(run_dirs, names), options.folder, {options.gnuplot}));
    report.text += fmt::format("\nPlots           {}/compare.{{svg,png}}", options.folder);
  } catch (const PlotterError& error) {
    const std::string problem =
        fmt::format("{}; data and scripts are in {}", error.what(), options.folder);
    report.summary["plots_error"] = problem;
    report.text += "\nPlots           none: " + problem;
  }
  return report;
}

}  // namespace strait::report
