// The page of a run: one HTML file that needs nothing else.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "strait/base/json.h"

namespace strait::report {

struct PageInput {
  Json summary;      // of RunReport
  Json plan, train;  // of summary.json; null when the run left none
  std::string run_toml;
  /// Caption and text of each SVG document, in order; empty without gnuplot.
  std::vector<std::pair<std::string, std::string>> figures;
  std::string plan_figure;  // of a batch of documents; "" = none
};

/// HTML with its styles and figures inside: no script, no reference to anything outside. Widths
/// follow the screen from 320 px on; colours follow the reader's light or dark setting. What is not
/// known is shown as a dash. Without figures it says why (summary.plots_error) and its tables
/// remain.
std::string report_page(const PageInput& input);

}  // namespace strait::report
