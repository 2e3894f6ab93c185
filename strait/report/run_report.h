// `strait report`: what a run folder tells about its run, as JSON, as a table, as pictures and as a
// page.
#pragma once

#include <string>

#include "strait/base/json.h"

namespace strait::report {

struct RunReport {
  /// run_dir, steps, last_step, steps_skipped, train_loss (mean of the last min(100, steps)),
  /// validation_loss (last), best_validation_loss, best_validation_step, seconds_per_step: STAT
  /// (without the first 5 steps, where there are more), compute_share, exposed_communication_share,
  /// tokens_per_second, model_flops_utilization, predicted_seconds_per_step, bytes_per_step
  /// [{level, payload_bytes}], peak_memory_bytes, plots [path], plots_error (null or why there are
  /// none), verdict: null, or who fell behind first by the flight records: {fault, rank, operation,
  /// step, seconds, waiting [rank], records, ranks, text}; page: path of the HTML page, or null;
  /// page_error: null, or why there is no page or what it lacks; failures [{rank, kind, message,
  /// operation, step}] as the ranks recorded them. Without a whole step only run_dir, steps,
  /// verdict, page and failures.
  Json summary;
  std::string text;  // the same for a person, lines of at most 100 columns
};

struct ReportOptions {
  std::string folder;  // of page and pictures; "" = the run folder
  std::string gnuplot = "gnuplot";
};

/// Reads `run_dir`/metrics.jsonl, and summary.json and run.toml where they are, draws the pictures
/// into the folder's report/ and writes its report.html, one page that needs no other file. What
/// cannot be made costs itself alone: pictures where gnuplot is missing or fails, pictures and page
/// where the run folder may only be read, what a damaged summary.json would tell; plots_error and
/// page_error say why. Blocks while gnuplot
/// runs. Errors (UserError): no run folder, no metrics or no whole step in it and no flight records
/// either; InputOutputError: options.folder cannot be written.
RunReport report_run(const std::string& run_dir, const ReportOptions& options = {});

/// The summary's figures, of the metrics alone; nothing is written. UserError as report_run.
Json run_figures(const std::string& run_dir);

}  // namespace strait::report
