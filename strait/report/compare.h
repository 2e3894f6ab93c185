// Several runs side by side.
#pragma once

#include <string>
#include <vector>

#include "strait/report/run_report.h"

namespace strait::report {

/// A table with a column per run, and as summary {runs: [figures of RunReport::summary], plots,
/// plots_error}. options.folder: gets the pictures compare.{svg,png}, the training loss of each run
/// over its steps; "" = none are drawn. The run folders are only read. Errors as report_run's.
RunReport compare_runs(const std::vector<std::string>& run_dirs, const ReportOptions& options = {});

}  // namespace strait::report
