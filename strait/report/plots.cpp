#include "strait/report/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/report/gnuplot.h"
#include "strait/report/statistics.h"

namespace strait::report {
namespace {

constexpr int64_t kMaxGroups = 400;

/// Common to both pictures: quiet axes, a light grid, the legend above the plot.
constexpr const char* kLook = R"(set encoding utf8
set border 3 linecolor rgb '#606060' linewidth 1
set tics nomirror out scale 0.6 textcolor rgb '#303030'
set grid ytics linecolor rgb '#e4e4e4' linewidth 1 linetype 1
set format x "%.0f"
set key outside above left horizontal Left reverse samplen 3 width 1 maxrows 1
set key textcolor rgb '#303030'
set xlabel 'Optimizer step' textcolor rgb '#303030'
set datafile separator tab
set datafile missing '?'
set lmargin 10
set rmargin 4
set bmargin 4
)";

/// Mean of the known values of one member over a group; NaN when none is known.
double mean_of(const StepMetrics* begin, const StepMetrics* end, double StepMetrics::*member) {
  double sum = 0;
  int64_t count = 0;
  for (const StepMetrics* metrics = begin; metrics != end; ++metrics) {
    if (!std::isfinite(metrics->*member)) continue;
    sum += metrics->*member;
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : kUnknown;
}

/// Means over groups of equal size; step is that of the middle, rounded up. validation_loss is left
/// out.
std::vector<StepMetrics> grouped(const std::vector<StepMetrics>& steps) {
  const auto count = static_cast<int64_t>(steps.size());
  const int64_t size = (count + kMaxGroups - 1) / kMaxGroups;
  std::vector<StepMetrics> groups;
  for (int64_t begin = 0; begin < count; begin += size) {
    const int64_t end = std::min(begin + size, count);
    const StepMetrics* first = steps.data() + begin;
    const StepMetrics* last = steps.data() + end;
    StepMetrics group;
    group.step = steps[static_cast<size_t>((begin + end) / 2)].step;
    for (double StepMetrics::*member :
         {&StepMetrics::loss, &StepMetrics::seconds, &StepMetrics::compute_seconds,
          &StepMetrics::exposed_communication_seconds, &StepMetrics::predicted_seconds}) {
      group.*member = mean_of(first, last, member);
    }
    groups.push_back(group);
  }
  return groups;
}

std::string cell(double value) { return std::isfinite(value) ? fmt::format("{:.6g}", value) : "?"; }

/// Means over a window that is centred on each point, so that the curve does not lag behind a
/// falling loss; the window narrows towards both ends.
std::vector<double> smoothed(const std::vector<StepMetrics>& groups) {
  const auto count = static_cast<int64_t>(groups.size());
  const int64_t widest = std::max<int64_t>(1, count / 25);
  std::vector<double> means;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t reach = std::min({widest, i, count - 1 - i});
    means.push_back(mean_of(&groups[static_cast<size_t>(i - reach)], groups.data() + i + reach + 1,
                            &StepMetrics::loss));
  }
  return means;
}

std::string loss_table(const std::vector<StepMetrics>& groups) {
  const std::vector<double> means = smoothed(groups);
  std::string text = "# step\tloss\tsmoothed\n";
  for (size_t i = 0; i < groups.size(); ++i) {
    text += fmt::format("{}\t{}\t{}\n", groups[i].step, cell(groups[i].loss), cell(means[i]));
  }
  return text;
}

std::string validation_table(const std::vector<StepMetrics>& steps) {
  std::string text = "# step\tvalidation loss\n";
  for (const StepMetrics& metrics : steps) {
    if (!std::isfinite(metrics.validation_loss)) continue;
    text += fmt::format("{}\t{}\n", metrics.step, metrics.validation_loss);
  }
  return text;
}

/// Milliseconds, already summed from below: computing, + exposed communication, the whole step.
std::string time_table(const std::vector<StepMetrics>& groups) {
  std::string text = "# step\tcompute ms\tcompute + exposed ms\tstep ms\tpredicted ms\n";
  for (const StepMetrics& group : groups) {
    if (!std::isfinite(group.seconds)) continue;
    const double compute = std::isfinite(group.compute_seconds) ? group.compute_seconds : 0;
    const double exposed = std::isfinite(group.exposed_communication_seconds)
                               ? group.exposed_communication_seconds
                               : 0;
    const double whole = std::max(group.seconds, compute + exposed);
    text += fmt::format("{}\t{}\t{}\t{}\t{}\n", group.step, cell(1e3 * compute),
                        cell(1e3 * (compute + exposed)), cell(1e3 * whole),
                        cell(1e3 * group.predicted_seconds));
  }
  return text;
}

/// Upper end of the time axis in milliseconds: a slow first step or a single hiccup may leave the
/// picture, the prediction may not.
double time_limit(const std::vector<StepMetrics>& groups) {
  std::vector<double> seconds;
  double predicted = 0;
  for (const StepMetrics& group : groups) {
    seconds.push_back(group.seconds);
    if (std::isfinite(group.predicted_seconds))
      predicted = std::max(predicted, group.predicted_seconds);
  }
  const Statistics statistics = statistics_of(seconds);
  if (statistics.count == 0) return 1;
  const double usual = std::min(1.1 * statistics.max, 1.3 * statistics.p90);
  return 1e3 * std::max({usual, 1.15 * predicted, 1e-6});
}

/// What both pictures of one name are made of.
struct Picture {
  std::string name, settings, plot;
  int64_t last_step = 0;
};

std::string script(const Picture& picture) {
  return fmt::format(
      "{}set xrange [0:{}]\n{}"
      "set terminal svg size 960,540 font 'DejaVu Sans,14' background rgb 'white'\n"
      "set output '{}.svg'\n{}\nunset output\n"
      "set terminal pngcairo size 1440,810 font 'DejaVu Sans,14' fontscale 1.1 linewidth 1.5 "
      "background rgb 'white'\n"
      "set output '{}.png'\nreplot\nunset output\n",
      kLook, picture.last_step, picture.settings, picture.name, picture.plot, picture.name);
}

std::string loss_axis(const PlotOptions& options) {
  return fmt::format("set ylabel {} noenhanced textcolor rgb '#303030'\n",
                     quoted(fmt::format("Loss ({})", options.loss_unit)));
}

std::string loss_script(int64_t last_step, bool has_validation, const PlotOptions& options) {
  Picture picture{.name = "loss", .settings = {}, .plot = {}, .last_step = last_step};
  picture.settings = loss_axis(options);
  picture.plot =
      "plot 'loss.tsv' using 1:2 with lines linewidth 1 linecolor rgb '#b9cfe8' title 'training', "
      "\\\n"
      "     '' using 1:3 with lines linewidth 2.5 linecolor rgb '#1f5fa8' title 'training, "
      "smoothed'";
  if (has_validation) {
    picture.plot +=
        ", \\\n     'validation.tsv' using 1:2 with linespoints linewidth 2 pointtype 7 pointsize "
        "0.7"
        " linecolor rgb '#d9541e' title 'validation'";
  }
  return script(picture);
}

std::string time_script(int64_t last_step, double limit, const std::string& prediction) {
  Picture picture{.name = "time", .settings = {}, .plot = {}, .last_step = last_step};
  picture.settings = fmt::format(
      "set yrange [0:{}]\nset ylabel 'Time per step (ms)' textcolor rgb '#303030'\n"
      "set style fill solid 1.0 noborder\n",
      limit);
  picture.plot =
      "plot 'time.tsv' using 1:4 with filledcurves x1 linecolor rgb '#d4d4d4' title 'other', \\\n"
      "     '' using 1:3 with filledcurves x1 linecolor rgb '#ec8b4f' title 'exposed "
      "communication', \\\n"
      "     '' using 1:2 with filledcurves x1 linecolor rgb '#4f86c0' title 'compute'";
  if (!prediction.empty()) {
    picture.plot += fmt::format(
        ", \\\n     '' using 1:5 with lines linewidth 2 dashtype (8,5) linecolor rgb '#202020'"
        " title {} noenhanced",
        quoted(prediction));
  }
  return script(picture);
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw InputOutputError(fmt::format("cannot make {}: {}", folder, error.message()));
}

std::string comparison_script(const std::vector<NamedSteps>& runs, const PlotOptions& options) {
  static constexpr const char* kColours[] = {"#1f5fa8", "#d9541e", "#2a8a4a", "#8a4fb0",
                                             "#b08a1f", "#c0366c", "#3a9aa8", "#606060"};
  Picture picture{.name = "compare", .settings = {}, .plot = "plot ", .last_step = 1};
  picture.settings = "set key maxrows auto\n" + loss_axis(options);
  for (size_t run = 0; run < runs.size(); ++run) {
    const char* colour = kColours[run % std::size(kColours)];
    picture.plot += fmt::format(
        "{}'compare-{}.tsv' using 1:3 with lines linewidth 2 linecolor rgb '{}' title {} "
        "noenhanced, "
        "\\\n"
        "     'compare-{}-validation.tsv' using 1:2 with points pointtype 7 pointsize 0.7 "
        "linecolor rgb '{}' notitle",
        run == 0 ? "" : ", \\\n     ", run, colour, quoted(runs[run].name), run, colour);
    picture.last_step = std::max(picture.last_step, runs[run].steps.back().step);
  }
  return script(picture);
}

}  // namespace

std::vector<std::string> draw_comparison(const std::vector<NamedSteps>& runs,
                                         const std::string& folder, const PlotOptions& options) {
  const std::filesystem::path path(folder);
  make_folder(folder);
  for (size_t run = 0; run < runs.size(); ++run) {
    write_file_atomically(path / fmt::format("compare-{}.tsv", run),
                          loss_table(grouped(runs[run].steps)));
    write_file_atomically(path / fmt::format("compare-{}-validation.tsv", run),
                          validation_table(runs[run].steps));
  }
  write_file_atomically(path / "compare.gnuplot", comparison_script(runs, options));
  run_gnuplot(options.gnuplot, path, {"compare.gnuplot"});
  return {path / "compare.svg", path / "compare.png"};
}

std::vector<std::string> draw_plots(const std::vector<StepMetrics>& steps,
                                    const std::string& folder, const PlotOptions& options) {
  if (steps.empty()) throw UserError("no steps to draw: the run has not finished its first step");
  const std::filesystem::path path(folder);
  make_folder(folder);
  const std::vector<StepMetrics> groups = grouped(steps);
  const int64_t last_step = steps.back().step;
  write_file_atomically(path / "loss.tsv", loss_table(groups));
  write_file_atomically(path / "validation.tsv", validation_table(steps));
  write_file_atomically(path / "time.tsv", time_table(groups));
  const bool validated = any_known(steps, &StepMetrics::validation_loss);
  write_file_atomically(path / "loss.gnuplot", loss_script(last_step, validated, options));
  const std::string prediction = any_known(steps, &StepMetrics::predicted_seconds)
                                     ? "predicted" + options.prediction_note
                                     : "";
  write_file_atomically(path / "time.gnuplot",
                        time_script(last_step, time_limit(groups), prediction));
  std::vector<std::string> scripts, pictures;
  const auto draw = [&](const std::string& name) {
    scripts.push_back(name + ".gnuplot");
    for (const char* ending : {".svg", ".png"}) pictures.push_back(path / (name + ending));
  };
  // gnuplot fails where no point is known.
  if (validated || any_known(steps, &StepMetrics::loss)) draw("loss");
  if (any_known(steps, &StepMetrics::seconds)) draw("time");
  if (!scripts.empty()) run_gnuplot(options.gnuplot, path, scripts);
  return pictures;
}

}  // namespace strait::report
