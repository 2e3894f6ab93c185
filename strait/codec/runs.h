// Pieces of several codecs: a buffer of parameters of which each has a codec of its own, cut into
// equally many parts. So no block of elements reaches over the border of two parameters, and small
// ones are sent as they are.
//
// Every run of elements is cut by itself, and the piece of part p holds the pth part of every run,
// encoded, in the order of the runs. Hence the pieces of all parts are equally long; what a last
// part lacks of a run is room without meaning.
#pragma once

#include <string>
#include <vector>

#include "strait/codec/codec.h"

namespace strait::codec {

/// Neighbours in a buffer that have one codec.
struct Run {
  CodecSpec codec;
  int64_t elements = 0;
  bool operator==(const Run&) const = default;
};

struct Runs {
  std::vector<Run> runs;
  int64_t parts = 1;

  /// Of one part of a run; its last parts may have fewer.
  int64_t grain(size_t run) const { return (runs[run].elements + parts - 1) / parts; }
  /// Numbers of a part, runs one after another, none of them shorter than its grain.
  int64_t part_elements() const;
  /// Of the piece of a part.
  int64_t piece_bytes(Dtype dtype) const;
  int64_t metadata_bytes() const;
};

/// "none:64|qsgd4/512:4096@2" = 64 and 4,096 elements in 2 parts; print_runs' text is read back.
std::string print_runs(const Runs& runs);
/// Whether a text is one of runs, not of one codec.
bool is_runs(const std::string& text);
/// Errors: UserError of a codec; InternalError for a text that print_runs has not made.
Runs parse_runs(const std::string& text);

/// Scales in one piece of `piece_bytes`, of a codec, with borders (borders.h) or of runs.
int64_t scale_bytes(const std::string& text, int64_t piece_bytes);

}  // namespace strait::codec
