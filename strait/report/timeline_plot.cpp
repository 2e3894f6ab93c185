#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "strait/base/file.h"
#include "strait/base/work_folder.h"
#include "strait/report/gnuplot.h"
#include "strait/report/plots.h"

namespace strait::report {
namespace {

/// What the bars of a kind of operation look like, in the order of the legend.
struct Kind {
  const char* title;
  const char* colour;
  std::vector<std::string_view> words;  // any of them in an operation's name makes it of this kind
};
const Kind kKinds[] = {
    {"forward", "4f86c0", {}},  // looked for last: forward_backward is a backward
    {"backward", "8c6bb1", {"backward"}},
    {"update", "b8860b", {"update"}},
    {"codec", "7fb241", {"encode", "decode"}},
    {"gather", "1f9e89", {"all_gather"}},
    {"reduction", "d9541e", {"reduce_scatter", "all_reduce"}},
    {"all-to-all", "c51b7d", {"all_to_all"}},
    {"message", "1b2a6b", {"send", "receive", "shift", "broadcast"}},
    {"other", "909090", {}},
};

/// "forward" of "x[0] = forward block 0(batch) on compute": what stands before it is made by it.
std::string_view operation_name(std::string_view text) {
  for (const std::string_view sign : {" = ", " += ", " <- "})
    if (const size_t at = text.find(sign); at != std::string_view::npos)
      text.remove_prefix(at + sign.size());
  return text.substr(0, text.find_first_of(" ([{"));
}

const Kind& kind_of(const std::string& operation) {
  const std::string_view name = operation_name(operation);
  for (const Kind& kind : kKinds)
    for (const std::string_view word : kind.words)
      if (name.find(word) != std::string_view::npos) return kind;
  return name.starts_with("forward") ? kKinds[0] : *std::rbegin(kKinds);
}

/// Entries of the legend, of the kinds that ran: what a plot command holds besides the data.
std::string legend(const trace::Recorder& recorder) {
  std::set<const Kind*> ran;
  for (const trace::Span& span : recorder.spans())
    ran.insert(&kind_of(recorder.names()[static_cast<size_t>(span.name)]));
  std::string entries;
  for (const Kind& kind : kKinds)
    if (ran.contains(&kind))
      entries += fmt::format(", \\\n     keyentry with boxes linecolor rgb '#{}' title '{}'",
                             kind.colour, kind.title);
  return entries;
}

std::string table(const trace::Recorder& recorder) {
  double origin = std::numeric_limits<double>::infinity();
  for (const trace::Span& span : recorder.spans()) origin = std::min(origin, span.time.begin);
  std::string text = "# begin ms\tstream\tlength ms\tcolour\n";
  for (const trace::Span& span : recorder.spans())
    text += fmt::format("{:.6g}\t{}\t{:.6g}\t0x{}\n", 1e3 * (span.time.begin - origin), span.stream,
                        1e3 * (span.time.end - span.time.begin),
                        kind_of(recorder.names()[static_cast<size_t>(span.name)]).colour);
  return text;
}

std::string script(const trace::Recorder& recorder, const std::vector<std::string>& streams,
                   bool svg) {
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
      rows, streams.size() - 1, legend(recorder));
}

}  // namespace

void require_picture_name(const std::string& path) {
  const std::string ending = std::filesystem::path(path).extension();
  if (ending != ".svg" && ending != ".png") throw UserError(path + ": a plot ends in .svg or .png");
}

void draw_timeline(const trace::Recorder& recorder, const std::vector<std::string>& streams,
                   const std::string& path, const std::string& gnuplot) {
  require_picture_name(path);
  const std::filesystem::path target(path);
  if (recorder.spans().empty())
    throw UserError(path + ": nothing ran, so there is nothing to draw");
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  const WorkFolder work(folder / ".strait-plot-");
  const std::filesystem::path inside(work.path());
  write_file_atomically(inside / "spans.tsv", table(recorder));
  write_file_atomically(inside / "timeline.gnuplot",
                        script(recorder, streams, target.extension() == ".svg"));
  run_gnuplot(gnuplot, inside, {"timeline.gnuplot"});
  write_file_atomically(path, read_file(inside / "picture"));
}

}  // namespace strait::report
