#include "strait/codec/runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/codec/borders.h"
#include "strait/codec/count_text.h"

namespace strait::codec {
int64_t Runs::part_elements() const {
  int64_t elements = 0;
  for (size_t i = 0; i < runs.size(); ++i) elements += grain(i);
  return elements;
}

int64_t Runs::piece_bytes(Dtype dtype) const {
  int64_t bytes = 0;
  for (size_t i = 0; i < runs.size(); ++i) bytes += encoded_bytes(runs[i].codec, grain(i), dtype);
  return bytes;
}

int64_t Runs::metadata_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < runs.size(); ++i) bytes += codec::metadata_bytes(runs[i].codec, grain(i));
  return bytes;
}

std::string print_runs(const Runs& runs) {
  std::string text;
  for (const Run& run : runs.runs)
    text += fmt::format("{}{}:{}", text.empty() ? "" : "|", print_codec(run.codec), run.elements);
  return text + fmt::format("@{}", runs.parts);
}

bool is_runs(const std::string& text) { return text.find('@') != std::string::npos; }

Runs parse_runs(const std::string& text) {
  const size_t at = text.find('@');
  if (at == std::string::npos) throw InternalError("codec: no runs: " + text);
  Runs runs;
  runs.parts = parse_count(text, at + 1, text.size());
  for (size_t begin = 0; begin < at;) {
    const size_t end = std::min(text.find('|', begin), at), colon = text.find(':', begin);
    if (colon >= end) throw InternalError("codec: a run without elements in " + text);
    runs.runs.push_back(
        {parse_codec(text.substr(begin, colon - begin)), parse_count(text, colon + 1, end)});
    begin = end + 1;
  }
  return runs;
}

int64_t scale_bytes(const std::string& text, int64_t piece_bytes) {
  if (is_runs(text)) return parse_runs(text).metadata_bytes();
  const BorderedCodec bordered = parse_bordered(text);
  return bordered.borders.empty() ? scale_bytes(bordered.codec, piece_bytes) : bordered.scale_bytes;
}

}  // namespace strait::codec
