#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "strait/base/file.h"
#include "strait/base/work_folder.h"
#include "strait/report/gnuplot.h"
#include "strait/report/plots.h"

namespace strait::report {
namespace {

/// What the bars of a kind of operation look like; the words before its parenthesis say the kind.
struct Kind {
  const char* word;
  const char* colour;
  const char* title;  // in the legend; null = that of the row before it
};
constexpr Kind kKinds[] = {{"all_gather", "1f9e89", "gather"},
                           {"reduce_scatter", "d9541e", "reduction"},
                           {"all_reduce", "d9541e", nullptr},
                           {"backward", "8c6bb1", "backward"},
                           {"forward", "4f86c0", "forward"},
                           {"update", "b8860b", "update"},
                           {"", "909090", "other"}};

std::string colour(const std::string& name) {
  const Kind* kind = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& one) {
    return name.find(one.word) != std::string::npos;
  });
  return std::string("0x") + kind->colour;
}

/// Entries of the legend: what a plot command holds besides the data.
std::string legend() {
  std::string entries;
  for (const Kind& kind : kKinds)
    if (kind.title != nullptr)
      entries += fmt::format(", \\\n     keyentry with boxes linecolor rgb '#{}' title '{}'",
                             kind.colour, kind.title);
  return entries;
}

std::string table(const trace::Recorder& recorder) {
  double origin = std::numeric_limits<double>::infinity();
  for (const trace::Span& span : recorder.spans()) origin = std::min(origin, span.time.begin);
  std::string text = "# begin ms\tstream\tlength ms\tcolour\n";
  for (const trace::Span& span : recorder.spans())
    text +=
        fmt::format("{:.6g}\t{}\t{:.6g}\t{}\n", 1e3 * (span.time.begin - origin), span.stream,
                    1e3 * (span.time.end - span.time.begin), colour(recorder.names()[span.name]));
  return text;
}

std::string script(const std::vector<std::string>& streams, bool svg) {
  std::string rows;
  for (size_t stream = 0; stream < streams.size(); ++stream)
    rows += fmt::format("{}{} {}", stream == 0 ? "" : ", ", quoted(streams[stream]), stream);
  return fmt::format(
      "set encoding utf8\nset terminal {}\nset output 'picture'\nset datafile separator tab\n"
      "set key outside above left horizontal Left reverse samplen 1 width 1 maxrows 1 textcolor "
      "rgb "
      "'#303030'\n"
      "set border 3 linecolor rgb '#606060'\nset tics nomirror out\nset xlabel 'Time (ms)'\n"
      "set lmargin 12\nset rmargin 4\nset style fill solid 0.9 noborder\n"
      "set ytics noenhanced ({})\nset yrange [{}.6:-0.6]\nset xrange [0:*]\n"
      "plot 'spans.tsv' using ($1+$3/2):2:($3/2):(0.35):4 with boxxyerror linecolor rgb variable "
      "notitle{}\n",
      svg ? "svg size 1200,420 font 'DejaVu Sans,14' background rgb 'white'"
          : "pngcairo size 1600,560 font 'DejaVu Sans,14' background rgb 'white'",
      rows, streams.size() - 1, legend());
}

}  // namespace

void draw_timeline(const trace::Recorder& recorder, const std::vector<std::string>& streams,
                   const std::string& path, const std::string& gnuplot) {
  const std::filesystem::path target(path);
  if (target.extension() != ".svg" && target.extension() != ".png")
    throw UserError(path + ": a plot ends in .svg or .png");
  if (recorder.spans().empty())
    throw UserError(path + ": nothing ran, so there is nothing to draw");
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  const WorkFolder work(folder / ".strait-plot-");
  const std::filesystem::path inside(work.path());
  write_file_atomically(inside / "spans.tsv", table(recorder));
  write_file_atomically(inside / "timeline.gnuplot", script(streams, target.extension() == ".svg"));
  run_gnuplot(gnuplot, inside, {"timeline.gnuplot"});
  write_file_atomically(path, read_file(inside / "picture"));
}

}  // namespace strait::report
