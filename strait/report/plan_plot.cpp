#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/report/gnuplot.h"
#include "strait/report/plots.h"

namespace strait::report {
namespace {

constexpr std::array<const char*, 3> kZones = {"local", "intra", "inter"};

constexpr const char* kLook = R"(set encoding utf8
set border 3 linecolor rgb '#606060' linewidth 1
set tics nomirror out scale 0.6 textcolor rgb '#303030'
set grid ytics linecolor rgb '#e4e4e4' linewidth 1 linetype 1
set key outside above left horizontal Left reverse samplen 1 width -1 maxrows 1
set key textcolor rgb '#303030'
set datafile separator tab
set datafile missing '?'
set style fill solid 1.0 noborder
set boxwidth 0.8
set lmargin 9
set bmargin 4
set tmargin 5
)";

/// A row per rank: tokens, then pairs, each summed from the local zone outwards.
std::string ranks_table(const Json& plan) {
  const Json& zones = plan.at("ranks");
  std::string text = "# rank\ttokens local\t+ inside nodes\t+ between nodes\tpairs likewise\n";
  const size_t ranks = zones.at(kZones.front()).at("tokens").size();
  for (size_t rank = 0; rank < ranks; ++rank) {
    text += fmt::format("{}", rank);
    for (const char* of : {"tokens", "pairs"}) {
      int64_t sum = 0;
      for (const char* zone : kZones) {
        sum += zones.at(zone).at(of).as_array()[rank].as_integer();
        text += fmt::format("\t{}", sum);
      }
    }
    text += "\n";
  }
  return text;
}

/// Seconds in which the attention of a batch is computed.
std::string batches_table(const std::vector<StepMetrics>& steps) {
  std::string text = "# step\tpredicted, slowest rank\tmeasured, slowest\tmeasured, mean\n";
  for (const StepMetrics& metrics : steps) {
    if (metrics.sequence_plan.is_null()) continue;
    const auto seconds = [&](const char* part, const char* member) {
      const Json* found = metrics.sequence_plan.find(part);
      return found == nullptr ? std::string("?")
                              : fmt::format("{:.6g}", found->at(member).as_number());
    };
    text += fmt::format("{}\t{}\t{}\t{}\n", metrics.step,
                        seconds("predicted", "computing_slowest_seconds"),
                        seconds("measured", "computing_slowest_seconds"),
                        seconds("measured", "computing_mean_seconds"));
  }
  return text;
}

/// `column`: of the local zone in ranks_table.
std::string zones_panel(const std::string& label, int column, size_t ranks) {
  return fmt::format(
      "set xlabel 'Rank of the sequence axis' textcolor rgb '#303030'\n"
      "set ylabel '{0}' textcolor rgb '#303030'\nset format y '%.1s%c'\n"
      "set xrange [-0.7:{1}]\nset yrange [0:*]\n{2}"
      "plot 'plan.tsv' using 1:{3} with boxes linecolor rgb '#ec8b4f' title 'between nodes', "
      "'' using 1:{4} with boxes linecolor rgb '#1f9e89' title 'inside', "
      "'' using 1:{5} with boxes linecolor rgb '#4f86c0' title 'local'\n",
      label, static_cast<double>(ranks) - 0.3,
      ranks <= 16 ? "set xtics 1\n" : "set xtics autofreq\n", column + 2, column + 1, column);
}

std::string panels(int64_t step, size_t ranks) {
  return fmt::format(
             "set multiplot layout 1,3 title 'Plan of the batch of step {}' textcolor rgb "
             "'#303030'\n",
             step) +
         zones_panel("Tokens", 2, ranks) + zones_panel("Pairs of tokens attended", 5, ranks) +
         fmt::format(
             "set xlabel 'Optimizer step' textcolor rgb '#303030'\nset xtics autofreq\n"
             "set ylabel 'Computing attention (s)' textcolor rgb '#303030'\nset format y '%g'\n"
             "set xrange [0:{}]\n"
             "plot 'plan_batches.tsv' using 1:4 with lines linewidth 1.5 linecolor rgb '#b9cfe8' "
             "title 'mean', '' using 1:3 with lines linewidth 2.5 linecolor rgb '#1f5fa8' title "
             "'slowest', '' using 1:2 with lines linewidth 2 dashtype (8,5) linecolor rgb "
             "'#202020' title 'predicted'\n"
             "unset multiplot\nunset output\n",
             step);
}

}  // namespace

std::vector<std::string> draw_batch_plan(const std::vector<StepMetrics>& steps,
                                         const std::string& folder, const PlotOptions& options) {
  const StepMetrics* last = nullptr;
  for (const StepMetrics& metrics : steps)
    if (metrics.sequence_plan.is_object() && metrics.sequence_plan.find("ranks") != nullptr)
      last = &metrics;
  if (last == nullptr) return {};
  const std::filesystem::path path(folder);
  write_file_atomically(path / "plan.tsv", ranks_table(last->sequence_plan));
  write_file_atomically(path / "plan_batches.tsv", batches_table(steps));
  const std::string drawn =
      panels(last->step, last->sequence_plan.at("ranks").at(kZones.front()).at("tokens").size());
  write_file_atomically(
      path / "plan.gnuplot",
      fmt::format("{0}set terminal svg size 1200,400 name 'plan' font 'DejaVu Sans,13' background "
                  "rgb 'white'\nset output 'plan.svg'\n{1}"
                  "set terminal pngcairo size 1800,600 font 'DejaVu Sans,13' fontscale 1.1 "
                  "linewidth 1.5 background rgb 'white'\nset output 'plan.png'\n{1}",
                  kLook, drawn));
  run_gnuplot(options.gnuplot, path, {"plan.gnuplot"});
  return {path / "plan.svg", path / "plan.png"};
}

}  // namespace strait::report
