#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "strait/base/file.h"
#include "strait/report/gnuplot.h"
#include "strait/report/plots.h"
#include "strait/report/quantities.h"
#include "strait/report/statistics.h"

namespace strait::report {
namespace {

double tokens_per_second(const StepMetrics* begin, const StepMetrics* end) {
  Rate tokens;
  for (const StepMetrics* metrics = begin; metrics != end; ++metrics)
    tokens.add(metrics->tokens_per_second * metrics->seconds, metrics->seconds);
  return tokens.value();
}

/// Small enough to be read on a phone, where a figure is as wide as the screen.
constexpr const char* kLook = R"(set encoding utf8
set border 3 linecolor rgb '#606060' linewidth 1
set tics nomirror out scale 0.6 textcolor rgb '#303030'
set grid ytics linecolor rgb '#e4e4e4' linewidth 1 linetype 1
set key outside above left horizontal Left reverse samplen 2 width 1 textcolor rgb '#303030'
set xlabel 'Optimizer step' textcolor rgb '#303030'
set xtics autofreq
set datafile separator tab
set datafile missing '?'
set style fill solid 1.0 noborder
set yrange [0:*]
)";

struct Figure {
  const char* name;
  bool known;  // by any step; gnuplot fails where no point is
  std::string caption;
  std::string plot;
};

std::string script(const Figure& figure, const std::string& range) {
  return fmt::format(
      "{}{}set terminal svg size 480,300 name '{}' font 'DejaVu Sans,13' background rgb 'white'\n"
      "set output 'page_{}.svg'\n{}\nunset output\n",
      kLook, range, figure.name, figure.name, figure.plot);
}

std::string series_table(const std::vector<StepMetrics>& steps) {
  const size_t size = (steps.size() + 399) / 400;
  std::string text = "# step\ttokens per second\tmemory MB\n";
  for (size_t begin = 0; begin < steps.size(); begin += size) {
    const size_t end = std::min(begin + size, steps.size());
    double memory = 0;
    for (size_t i = begin; i < end; ++i)
      memory = std::max(memory, static_cast<double>(steps[i].memory_bytes));
    const double speed = tokens_per_second(steps.data() + begin, steps.data() + end);
    text += fmt::format("{}\t{}\t{:.6g}\n", steps[end - 1].step, number_text("{:.6g}", speed),
                        memory / 1e6);
  }
  return text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> page_figures(const std::vector<StepMetrics>& steps,
                                                              const std::string& folder,
                                                              const PlotOptions& options) {
  const std::filesystem::path path(folder);
  write_file_atomically(path / "series.tsv", series_table(steps));
  const bool validated = any_known(steps, &StepMetrics::validation_loss);
  const double speed = tokens_per_second(steps.data(), steps.data() + steps.size());
  std::vector<Figure> figures = {
      {"loss", validated || any_known(steps, &StepMetrics::loss),
       fmt::format("Loss ({})", options.loss_unit),
       "set yrange [*:*]\nplot 'loss.tsv' using 1:2 with lines linewidth 1 linecolor rgb '#b9cfe8' "
       "title "
       "'training', '' using 1:3 with lines linewidth 2.5 linecolor rgb '#1f5fa8' title "
       "'smoothed'"},
      {"speed", std::isfinite(speed), "Throughput (tokens per second)",
       "set format y '%.1s%c'\nplot 'series.tsv' using 1:2 with lines linewidth 2 linecolor rgb "
       "'#1f9e89' "
       "notitle"},
      {"time", any_known(steps, &StepMetrics::seconds), "Time per step (ms)",
       "plot 'time.tsv' using 1:4 with filledcurves x1 linecolor rgb '#d4d4d4' title 'other', '' "
       "using 1:3 with "
       "filledcurves x1 linecolor rgb '#ec8b4f' title 'exposed', '' using 1:2 with filledcurves x1 "
       "linecolor rgb "
       "'#4f86c0' title 'compute'"},
      {"memory", true, "Memory of the fullest rank (MB)",
       "plot 'series.tsv' using 1:3 with lines linewidth 2 linecolor rgb '#8c6bb1' notitle"},
  };
  if (validated)
    figures[0].plot +=
        ", 'validation.tsv' using 1:2 with linespoints linewidth 2 pointtype 7 pointsize 0.5 "
        "linecolor rgb '#d9541e' title 'validation'";
  if (any_known(steps, &StepMetrics::predicted_seconds))
    figures[2].plot += fmt::format(
        ", '' using 1:5 with lines linewidth 2 dashtype (8,5) linecolor rgb '#202020' title {} "
        "noenhanced",
        quoted("predicted" + options.prediction_note));
  const std::string range = fmt::format("set xrange [0:{}]\n", steps.back().step);
  std::vector<std::pair<std::string, std::string>> drawn;
  for (const Figure& figure : figures) {
    if (!figure.known) continue;
    const std::string name = fmt::format("page_{}", figure.name);
    write_file_atomically(path / (name + ".gnuplot"), script(figure, range));
    run_gnuplot(options.gnuplot, path, {name + ".gnuplot"});
    drawn.emplace_back(figure.caption, read_file(path / (name + ".svg")));
  }
  return drawn;
}

}  // namespace strait::report
