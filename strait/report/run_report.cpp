#include "strait/report/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/process_identity.h"
#include "strait/report/metrics.h"
#include "strait/report/page.h"
#include "strait/report/plots.h"
#include "strait/report/quantities.h"
#include "strait/report/statistics.h"
#include "strait/trace/flight_file.h"

namespace strait::report {
namespace {

constexpr size_t kWarmUpSteps = 5;

/// The figures of a run. Times are means over the steps behind the warm-up.
struct Figures {
  int64_t steps = 0, last_step = 0, steps_skipped = 0;
  double train_loss = kUnknown, validation_loss = kUnknown;
  double best_validation_loss = kUnknown;
  int64_t best_validation_step = 0;
  Statistics seconds;
  double compute_share = kUnknown, exposed_share = kUnknown;
  double tokens_per_second = kUnknown, utilization = kUnknown, predicted_seconds = kUnknown;
  std::vector<LevelBytes> bytes_per_step;
  int64_t peak_memory_bytes = 0, peak_resident_bytes = 0;
  std::string prediction_note;
};

void add_losses(const std::vector<StepMetrics>& steps, Figures* figures) {
  std::vector<double> losses;
  for (const StepMetrics& metrics : steps) losses.push_back(metrics.loss);
  figures->train_loss = final_loss(losses);
  for (const StepMetrics& metrics : steps) {
    if (!std::isfinite(metrics.validation_loss)) continue;
    figures->validation_loss = metrics.validation_loss;
    if (!(metrics.validation_loss >= figures->best_validation_loss)) {
      figures->best_validation_loss = metrics.validation_loss;
      figures->best_validation_step = metrics.step;
    }
  }
}

void add_times(const std::vector<StepMetrics>& steps, Figures* figures) {
  std::vector<double> all;
  Rate compute, exposed, tokens, utilization;
  for (size_t i = steps.size() > kWarmUpSteps ? kWarmUpSteps : 0; i < steps.size(); ++i) {
    const StepMetrics& metrics = steps[i];
    all.push_back(metrics.seconds);
    compute.add(metrics.compute_seconds, metrics.seconds);
    exposed.add(metrics.exposed_communication_seconds, metrics.seconds);
    tokens.add(metrics.tokens_per_second * metrics.seconds, metrics.seconds);
    utilization.add(metrics.model_flops_utilization * metrics.seconds, metrics.seconds);
  }
  figures->seconds = statistics_of(all);
  figures->compute_share = compute.value();
  figures->exposed_share = exposed.value();
  figures->tokens_per_second = tokens.value();
  figures->utilization = utilization.value();
}

/// Steps differ where replicas agree at the end of rounds, and by the documents of their batch.
std::vector<LevelBytes> mean_bytes(const std::vector<StepMetrics>& steps) {
  std::vector<LevelBytes> mean = steps.back().bytes_per_level;
  for (size_t level = 0; level < mean.size(); ++level) {
    int64_t sum = 0;
    for (const StepMetrics& metrics : steps)
      if (level < metrics.bytes_per_level.size()) sum += metrics.bytes_per_level[level].bytes;
    mean[level].bytes = sum / std::ssize(steps);
  }
  return mean;
}

Figures figures_of(const std::vector<StepMetrics>& steps) {
  Figures figures;
  figures.steps = static_cast<int64_t>(steps.size());
  figures.last_step = steps.back().step;
  add_losses(steps, &figures);
  add_times(steps, &figures);
  figures.predicted_seconds = steps.back().predicted_seconds;
  figures.bytes_per_step = mean_bytes(steps);
  for (const StepMetrics& metrics : steps) {
    figures.steps_skipped += metrics.skipped ? 1 : 0;
    figures.peak_memory_bytes = std::max(figures.peak_memory_bytes, metrics.memory_bytes);
    figures.peak_resident_bytes = std::max(figures.peak_resident_bytes, metrics.resident_bytes);
  }
  return figures;
}

Json summary_of(const Figures& figures, const std::string& run_dir) {
  Json levels = Json::array();
  for (const LevelBytes& level : figures.bytes_per_step) {
    levels.push_back(Json::object({{"level", level.level}, {"payload_bytes", level.bytes}}));
  }
  const bool evaluated = std::isfinite(figures.best_validation_loss);
  return Json::object({
      {"run_dir", run_dir},
      {"steps", figures.steps},
      {"last_step", figures.last_step},
      {"steps_skipped", figures.steps_skipped},
      {"train_loss", figures.train_loss},
      {"validation_loss", figures.validation_loss},
      {"best_validation_loss", figures.best_validation_loss},
      {"best_validation_step", evaluated ? Json(figures.best_validation_step) : Json()},
      {"seconds_per_step", to_json(figures.seconds)},
      {"compute_share", figures.compute_share},
      {"exposed_communication_share", figures.exposed_share},
      {"tokens_per_second", figures.tokens_per_second},
      {"model_flops_utilization", figures.utilization},
      {"predicted_seconds_per_step", figures.predicted_seconds},
      {"bytes_per_step", std::move(levels)},
      {"peak_memory_bytes", figures.peak_memory_bytes},
      {"peak_resident_bytes",
       figures.peak_resident_bytes > 0 ? Json(figures.peak_resident_bytes) : Json()},
  });
}

std::string row(const char* title, const std::string& text) {
  return fmt::format("{:<12}{}\n", title, text);
}

std::string losses_text(const Figures& figures) {
  std::string text = row("Training", fmt::format("loss {}, mean of the last {} steps",
                                                 number_text("{:.4f}", figures.train_loss),
                                                 std::min(figures.steps, kLossSteps)));
  if (!std::isfinite(figures.best_validation_loss)) return text;
  return text + row("Validation",
                    fmt::format("loss {:.4f}; best {:.4f} after step {}", figures.validation_loss,
                                figures.best_validation_loss, figures.best_validation_step));
}

std::string times_text(const Figures& figures) {
  std::string time =
      fmt::format("{} median, {} to {} for 80 % of the steps", seconds_text(figures.seconds.median),
                  seconds_text(figures.seconds.p10), seconds_text(figures.seconds.p90));
  if (std::isfinite(figures.predicted_seconds)) {
    time += fmt::format("; predicted {}{}", seconds_text(figures.predicted_seconds),
                        figures.prediction_note);
  }
  return row("Step", time) +
         row("of it",
             fmt::format("{} compute, {} exposed communication, {} other",
                         share_text(figures.compute_share), share_text(figures.exposed_share),
                         share_text(1 - figures.compute_share - figures.exposed_share))) +
         row("Speed",
             fmt::format("{} tokens/s, {} of the peak (model FLOP/s utilisation)",
                         count_text(figures.tokens_per_second), share_text(figures.utilization)));
}

std::string text_of(const Figures& figures, const std::string& run_dir) {
  std::string text = row("Run", run_dir);
  const std::string left_out =
      figures.steps_skipped == 0
          ? ""
          : fmt::format("; {} left out: loss or gradient not finite", figures.steps_skipped);
  text += row("Steps",
              fmt::format("{}, the last is {}{}", count_text(static_cast<double>(figures.steps)),
                          figures.last_step, left_out));
  text += losses_text(figures) + times_text(figures);
  for (const LevelBytes& level : figures.bytes_per_step) {
    text += row("Sent", fmt::format("{} per step over {}",
                                    bytes_text(static_cast<double>(level.bytes)), level.level));
  }
  std::string memory = bytes_text(static_cast<double>(figures.peak_memory_bytes)) +
                       " at the peak of rank 0's allocator";
  if (figures.peak_resident_bytes > 0)
    memory += fmt::format("; {} resident in its process",
                          bytes_text(static_cast<double>(figures.peak_resident_bytes)));
  return text + row("Memory", memory);
}

using FlightFiles = std::vector<std::optional<trace::FlightFile>>;

/// Adds what the flight records tell. Ranks that were only told of another's failure are left out
/// of the text.
void add_verdict(const FlightFiles& files, RunReport* report) {
  const std::optional<trace::Verdict> verdict = trace::judge_flight(files);
  report->summary["verdict"] = trace::verdict_json(verdict, files);
  Json failures = Json::array();
  for (const auto& file : files) {
    if (!file || file->reason.kind == "request") continue;
    const trace::FlightReason& reason = file->reason;
    const ErrorPlace& place = reason.place;
    failures.push_back(
        Json::object({{"rank", file->rank},
                      {"kind", reason.kind},
                      {"message", reason.message},
                      {"operation", place.operation ? Json(*place.operation) : Json()},
                      {"step", place.step ? Json(*place.step) : Json()}}));
    if (reason.kind != "peer-lost" && reason.kind != "timeout")
      report->text +=
          row("Failure", fmt::format("rank {}, {}: {}", file->rank, reason.kind, reason.message));
  }
  report->summary["failures"] = failures;
  if (files.empty()) return;
  const auto records =
      std::count_if(files.begin(), files.end(), [](const auto& file) { return file.has_value(); });
  report->text += row("Records", fmt::format("{} of {} ranks left one", records, files.size()));
  report->text += row("Verdict", verdict ? verdict->text : "no rank waits for another");
}

/// Where page and pictures go. Only a folder that was asked for must be writable.
struct Target {
  std::string folder;
  bool required = false;
};

/// Runs `write`; why the folder could not be written, or "".
template <class Write>
std::string attempt(const Target& target, const Write& write) {
  try {
    write();
    return "";
  } catch (const PlotterError& error) {
    return fmt::format("{}; data and scripts are in {}/report", error.what(), target.folder);
  } catch (const InputOutputError& error) {
    if (target.required) throw;
    return fmt::format("{}; -o FOLDER writes elsewhere", error.what());
  }
}

/// "FOLDER/{loss,time}.{svg,png}", of pictures in pairs.
std::string plots_text(const std::vector<std::string>& plots) {
  if (plots.empty()) return "none: no step tells its loss or its seconds";
  std::string names;
  for (size_t i = 0; i < plots.size(); i += 2)
    names += (i > 0 ? "," : "") + std::filesystem::path(plots[i]).stem().string();
  if (plots.size() > 2) names = "{" + names + "}";
  return std::filesystem::path(plots.front()).parent_path() / (names + ".{svg,png}");
}

/// Figures and pictures of the steps.
RunReport report_steps(const std::vector<StepMetrics>& steps, const std::string& run_dir,
                       const Target& target, const PlotOptions& options, PageInput* page) {
  Figures figures = figures_of(steps);
  figures.prediction_note = options.prediction_note;
  RunReport report{summary_of(figures, run_dir), text_of(figures, run_dir)};
  const std::string folder = target.folder + "/report";
  std::vector<std::string> plots;
  const std::string problem = attempt(target, [&] {
    remove_interrupted_writes(folder);
    plots = draw_plots(steps, folder, options);
    page->figures = page_figures(steps, folder, options);
    const std::vector<std::string> of_plan = draw_batch_plan(steps, folder, options);
    plots.insert(plots.end(), of_plan.begin(), of_plan.end());
    if (!of_plan.empty()) page->plan_figure = read_file(of_plan.front());
  });
  report.text += row("Plots", problem.empty() ? plots_text(plots) : "none: " + problem);
  report.summary["plots"] = Json(plots);
  report.summary["plots_error"] = problem.empty() ? Json() : Json(problem);
  return report;
}

/// A text of the plan.
std::string plan_text(const PageInput& page, const char* name, const std::string& otherwise) {
  const Json* text = page.plan.find(name);
  return text != nullptr && text->is_string() ? text->as_string() : otherwise;
}

/// What the run left besides its metrics. Adds to `problems` what of it cannot be read.
PageInput read_page_input(const std::string& run_dir, std::vector<std::string>* problems) {
  PageInput page;
  const auto read = [&](const std::string& path, const auto& take) {
    try {
      if (std::filesystem::exists(path)) take(read_file(path));
    } catch (const Error& error) {
      problems->push_back(error.what());
    }
  };
  const std::string summary = run_dir + "/summary.json";
  read(summary, [&](const std::string& text) {
    const Json stored = Json::parse(text, summary);
    for (auto& [key, target] : {std::pair("plan", &page.plan), std::pair("train", &page.train)})
      if (const Json* found = stored.find(key)) *target = *found;
  });
  read(run_dir + "/run.toml", [&](const std::string& text) { page.run_toml = text; });
  return page;
}

/// Writes report.html, which lacks what `problems` tell.
void write_page(const Target& target, PageInput page, const std::vector<std::string>& problems,
                RunReport* report) {
  const std::string path = target.folder + "/report.html";
  page.summary = report->summary;
  const std::string problem = attempt(target, [&] {
    remove_interrupted_writes(target.folder);
    write_file_atomically(path, report_page(page));
  });
  const bool written = problem.empty(), whole = written && problems.empty();
  const std::string error = written ? fmt::format("{}", fmt::join(problems, "; ")) : problem;
  report->summary["page"] = written ? Json(path) : Json();
  report->summary["page_error"] = whole ? Json() : Json(error);
  report->text += row("Page", !written ? "none: " + error
                              : whole  ? path
                                       : path + ", incomplete: " + error);
}

Target target_of(const std::string& run_dir, const ReportOptions& options) {
  if (options.folder.empty()) return {run_dir, false};
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error)
    throw InputOutputError(
        fmt::format("cannot make the folder {}: {}", options.folder, error.message()));
  return {options.folder, true};
}

[[noreturn]] void refuse(const std::string& metrics_path, const std::string& message) {
  ErrorPlace place;
  place.file = metrics_path;
  throw UserError(message, place);
}

std::string metrics_of(const std::string& run_dir) { return run_dir + "/metrics.jsonl"; }

/// Steps of a run; none where it left no metrics.
std::vector<StepMetrics> steps_of(const std::string& run_dir) {
  const std::string path = metrics_of(run_dir);
  return std::filesystem::exists(path) ? read_metrics(path) : std::vector<StepMetrics>{};
}

void require_run(const std::string& run_dir, bool has_steps) {
  const std::string path = metrics_of(run_dir);
  if (!std::filesystem::exists(path))
    refuse(path, fmt::format("{} is not a run folder: it holds no metrics.jsonl", run_dir));
  if (!has_steps) refuse(path, path + ": no whole step yet");
}

}  // namespace

RunReport report_run(const std::string& run_dir, const ReportOptions& options) {
  const FlightFiles files = trace::read_flight(run_dir);
  const std::vector<StepMetrics> steps = steps_of(run_dir);
  if (files.empty()) require_run(run_dir, !steps.empty());
  const Target target = target_of(run_dir, options);
  RunReport report;
  std::vector<std::string> problems;
  PageInput page = read_page_input(run_dir, &problems);
  if (steps.empty()) {
    report.summary = Json::object({{"run_dir", run_dir}, {"steps", 0}});
    report.text = row("Run", run_dir) + row("Steps", "none whole");
  } else {
    report = report_steps(steps, run_dir, target,
                          {options.gnuplot, plan_text(page, "loss_unit", PlotOptions().loss_unit),
                           plan_text(page, "prediction_note", "")},
                          &page);
  }
  add_verdict(files, &report);
  write_page(target, std::move(page), problems, &report);
  report.text.pop_back();  // a line break ends each row but the last
  return report;
}

Json run_figures(const std::string& run_dir) {
  const std::vector<StepMetrics> steps = steps_of(run_dir);
  require_run(run_dir, !steps.empty());
  return summary_of(figures_of(steps), run_dir);
}

}  // namespace strait::report
