// How many chunks a product and the sum of its result over ranks are best taken apart into.
#pragma once

#include <cstdint>

#include "strait/collective/choose.h"
#include "strait/draft/step_options.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Fewer rows make a product slow: panels are packed for so many.
inline constexpr int64_t kLeastChunkRows = 16;
/// More chunks hide little more, and each is two operations of a program.
inline constexpr int64_t kMostChunks = 16;
/// To issue a product and hand its result to a communicator.
inline constexpr double kIssueSeconds = 20e-6;
/// Times that count as equal, and what chunks must gain, as parts of the time without.
inline constexpr double kAsFast = 1.01, kClearlyFaster = 0.95;

/// A product whose result is summed over ranks, on one of them.
struct SummedProduct {
  int64_t rows = 0;
  int64_t row_bytes = 0;       // of the result
  double product_seconds = 0;  // of all rows
  double call_seconds = 0;     // of each further call: it reads and packs the weights again
  double behind_seconds = 0;   // of what is computed between the product and who needs the sum
};

/// How its ranks lie on the links.
struct SumPath {
  collective::Spread spread;
  Cluster cluster;
};

/// Rows of every chunk but the last, which may have fewer.
inline int64_t chunk_rows(int64_t rows, int64_t chunks) { return (rows + chunks - 1) / chunks; }

/// Seconds until the product, its sum and what is computed behind it have ended, in chunks of so
/// many rows (all: the plain path): products one after another, the sum of a chunk beside the
/// products of later ones, sums one after another. O(chunks).
double seconds_in_chunks(const SummedProduct& product, int64_t chunk, const SumPath& path);

/// Rows of a chunk; all rows: it stays whole. Of equally fast numbers of chunks (to 1 %) the
/// smallest; with Tiles::kAuto whole, too, unless chunks are faster by 5 %. Chunks are summed by
/// the algorithm of the whole (collective::choose), so that bytes on every level are the same:
/// where that cannot be, they are fewer and larger. O(kMostChunks^2), or O(Tiles::chunks).
int64_t choose_chunk(const SummedProduct& product, const draft::Tiles& tiles, const SumPath& path);

}  // namespace strait::strategy
