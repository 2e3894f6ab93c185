// `strait report`: what a run folder tells about its run, as JSON, as a table, as pictures and as a
// page.
#pragma once

#include <string>

#include "strait/base/json.h"

namespace strait::report {

struct RunReport {
  /// run_dir, steps, last_step, train_loss (mean of the last min(100, steps)), validation_loss
  /// (last), best_validation_loss, best_validation_step, seconds_per_step: STAT (without the first
  /// 5 steps, where there are more), compute_share, exposed_communication_share, tokens_per_second,
  /// model_flops_utilization, predicted_seconds_per_step, bytes_per_step [{level, payload_bytes}],
  /// peak_memory_bytes, plots [path], plots_error (null or why there are none), verdict: null, or
  /// who fell behind first by the flight records: {fault, rank, operation, step, seconds, waiting
  /// [rank], records, ranks, text}; page: path of the HTML page; failures [{rank, kind, message,
  /// operation, step}] as the ranks recorded them. Without a whole step only run_dir, steps,
  /// verdict, page and failures.
  Json summary;
  std::string text;  // the same for a person, lines of at most 100 columns
};

/// Reads `run_dir`/metrics.jsonl, and summary.json and run.toml where they are, draws the pictures
/// into `run_dir`/report and writes `run_dir`/report.html, one page that needs no other file. A
/// gnuplot that is missing or fails costs the pictures, not the report. Blocks while gnuplot runs.
/// Errors (UserError): no run folder, no metrics or no whole step in it and no flight records
/// either; InputOutputError: the folder cannot be written.
RunReport report_run(const std::string& run_dir, const std::string& gnuplot = "gnuplot");

}  // namespace strait::report
