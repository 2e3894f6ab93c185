#include "strait/strategy/tiles/chunks.h"

#include <algorithm>
#include <optional>

namespace strait::strategy {
namespace {

using Choice = draft::Tiles::Choice;

double bytes_of(const SummedProduct& product, int64_t rows) {
  return static_cast<double>(rows * product.row_bytes);
}

collective::Algorithm algorithm(double bytes, const SumPath& path) {
  return collective::choose(collective::Operation::kAllReduce, bytes, path.spread, path.cluster);
}

double sum_seconds(double bytes, const SumPath& path) {
  constexpr collective::Operation kSum = collective::Operation::kAllReduce;
  return collective::transfer_seconds(kSum, algorithm(bytes, path), bytes, path.spread,
                                      path.cluster) +
         collective::late_seconds(kSum, path.spread, path.cluster);
}

bool moves_alike(const SummedProduct& product, int64_t chunk, const SumPath& path) {
  const collective::Algorithm whole = algorithm(bytes_of(product, product.rows), path);
  const int64_t rest = product.rows % chunk;
  return algorithm(bytes_of(product, chunk), path) == whole &&
         (rest == 0 || algorithm(bytes_of(product, rest), path) == whole);
}

int64_t forced(const SummedProduct& product, int64_t chunks, const SumPath& path) {
  for (int64_t count = std::min(chunks, product.rows); count > 1; --count)
    if (const int64_t chunk = chunk_rows(product.rows, count); moves_alike(product, chunk, path))
      return chunk;
  return product.rows;
}

}  // namespace

double seconds_in_chunks(const SummedProduct& product, int64_t chunk, const SumPath& path) {
  double computed = 0, summed = 0;
  for (int64_t row = 0; row < product.rows; row += chunk) {
    const int64_t rows = std::min(chunk, product.rows - row);
    computed +=
        product.product_seconds * static_cast<double>(rows) / static_cast<double>(product.rows);
    if (row > 0) computed += product.call_seconds + kIssueSeconds;
    summed = std::max(summed, computed) + sum_seconds(bytes_of(product, rows), path);
  }
  return std::max(summed, computed + product.behind_seconds);
}

int64_t choose_chunk(const SummedProduct& product, const draft::Tiles& tiles, const SumPath& path) {
  if (tiles.choice == Choice::kOff || product.rows < 2) return product.rows;
  if (tiles.chunks > 0) return forced(product, tiles.chunks, path);
  const double whole = seconds_in_chunks(product, product.rows, path);
  std::optional<double> best;
  int64_t chosen = product.rows;
  for (int64_t count = kMostChunks; count > 1; --count) {
    const int64_t chunk = chunk_rows(product.rows, count);
    if (chunk < kLeastChunkRows || chunk == product.rows || !moves_alike(product, chunk, path))
      continue;
    const double seconds = seconds_in_chunks(product, chunk, path);
    if (best && seconds > kAsFast * *best) continue;
    best = best ? std::min(*best, seconds) : seconds;
    chosen = chunk;
  }
  const bool pays = best && (tiles.choice == Choice::kOn || *best < kClearlyFaster * whole);
  return pays ? chosen : product.rows;
}

}  // namespace strait::strategy
