#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "strait/base/file.h"
#include "strait/report/gnuplot.h"
#include "strait/report/plots.h"

namespace strait::report {
namespace {

/// Colour by what an operation does: the word before its parenthesis says it.
const char* colour(const std::string& name) {
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  if (has("all_gather")) return "0x1f9e89";
  if (has("reduce_scatter") || has("all_reduce")) return "0xd9541e";
  if (has("backward")) return "0x8c6bb1";
  if (has("forward")) return "0x4f86c0";
  if (has("update")) return "0xb8860b";
  return "0x909090";
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

std::string script(const std::vector<std::string>& streams, const std::string& stem, bool svg) {
  std::string rows;
  for (size_t stream = 0; stream < streams.size(); ++stream)
    rows += fmt::format("{}'{}' {}", stream == 0 ? "" : ", ", streams[stream], stream);
  return fmt::format(
      "set encoding utf8\nset terminal {}\nset output '{}.{}'\nset datafile separator tab\nunset "
      "key\n"
      "set border 3 linecolor rgb '#606060'\nset tics nomirror out\nset xlabel 'Time (ms)'\n"
      "set title 'forward blue, backward violet, update gold, gathers green, reductions orange' "
      "textcolor rgb '#505050'\nset lmargin 12\nset rmargin 4\nset style fill solid 0.9 noborder\n"
      "set ytics ({})\nset yrange [{}.6:-0.6]\nset xrange [0:*]\n"
      "plot '{}.tsv' using ($1+$3/2):2:($3/2):(0.35):4 with boxxyerror linecolor rgb variable\n",
      svg ? "svg size 1200,420 font 'DejaVu Sans,14' background rgb 'white'"
          : "pngcairo size 1600,560 font 'DejaVu Sans,14' background rgb 'white'",
      stem, svg ? "svg" : "png", rows, streams.size() - 1, stem);
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
  const std::string stem = target.stem();
  write_file_atomically(folder / (stem + ".tsv"), table(recorder));
  write_file_atomically(folder / (stem + ".gnuplot"),
                        script(streams, stem, target.extension() == ".svg"));
  run_gnuplot(gnuplot, folder, {stem + ".gnuplot"});
}

}  // namespace strait::report
