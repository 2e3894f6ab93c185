#include "strait/strategy/tiles/shard_chunks.h"

#include <algorithm>
#include <optional>

namespace strait::strategy {
namespace {

using Choice = draft::Tiles::Choice;
using collective::Operation;

double seconds_of(Operation operation, double bytes, const SumPath& path) {
  return collective::transfer_seconds(
      operation, collective::choose(operation, bytes, path.spread, path.cluster), bytes,
      path.spread, path.cluster);
}

/// Two resources while chunks of shards pass through both.
class Clock {
 public:
  Clock(const ShardedProduct& product, const SumPath& path)
      : product_(product), path_(path), ranks_(path.spread.back()) {}

  void compute(int64_t rows) {
    const double all = static_cast<double>(ranks_ * product_.shard_rows);
    computed_ += product_.product_seconds * static_cast<double>(rows) / all;
    if (calls_++ > 0) computed_ += product_.call_seconds + kIssueSeconds;
  }
  void shift(int64_t rows) {
    moved_ += seconds_of(Operation::kShift, static_cast<double>(rows * product_.row_bytes), path_) +
              collective::late_seconds(Operation::kShift, path_.spread, path_.cluster);
  }

  /// All shifts are issued before the first product.
  double gathers(int64_t chunk) {
    compute(product_.shard_rows);
    computed_ += product_.beside_seconds;
    for_each_chunk(chunk, [&](int64_t rows) {
      shift(rows);
      computed_ = std::max(computed_, moved_);
      compute(rows);
    });
    return computed_;
  }
  double scatters(int64_t chunk) {
    for_each_chunk(chunk, [&](int64_t rows) {
      compute(rows);
      moved_ = std::max(moved_, computed_);
      shift(rows);
    });
    compute(product_.shard_rows);
    return std::max(moved_, computed_ + product_.beside_seconds) + product_.sum_seconds;
  }

 private:
  /// Of the shards of the others.
  template <class Act>
  void for_each_chunk(int64_t chunk, const Act& act) {
    for (int64_t shard = 1; shard < ranks_; ++shard)
      for (int64_t row = 0; row < product_.shard_rows; row += chunk)
        act(std::min(chunk, product_.shard_rows - row));
  }

  const ShardedProduct& product_;
  const SumPath& path_;
  const int64_t ranks_;
  double computed_ = 0, moved_ = 0;
  int64_t calls_ = 0;
};

}  // namespace

bool is_parted(const collective::Spread& spread) {
  return std::ranges::any_of(spread,
                             [&](int64_t within) { return within > 1 && within < spread.back(); });
}

double seconds_whole(const ShardedProduct& product, const SumPath& path) {
  const int64_t rows = path.spread.back() * product.shard_rows;
  const Operation exchange = product.gathers ? Operation::kAllGather : Operation::kReduceScatter;
  const double moved = seconds_of(exchange, static_cast<double>(rows * product.row_bytes), path) +
                       collective::late_seconds(exchange, path.spread, path.cluster);
  return std::max(moved, product.beside_seconds) + product.product_seconds;
}

double seconds_by_shards(const ShardedProduct& product, int64_t chunk, const SumPath& path) {
  Clock clock(product, path);
  return product.gathers ? clock.gathers(chunk) : clock.scatters(chunk);
}

int64_t choose_shard_chunk(const ShardedProduct& product, const draft::Tiles& tiles,
                           const SumPath& path) {
  const int64_t rows = product.shard_rows;
  if (tiles.choice == Choice::kOff || rows < 1 || is_parted(path.spread)) return 0;
  if (tiles.chunks > 0) return chunk_rows(rows, std::min(tiles.chunks, rows));
  std::optional<double> best;
  int64_t chosen = 0;
  for (int64_t count = kMostChunks; count > 0; --count) {
    const int64_t chunk = chunk_rows(rows, count);
    if (chunk < kLeastChunkRows) continue;
    const double seconds = seconds_by_shards(product, chunk, path);
    if (best && seconds > kAsFast * *best) continue;
    best = best ? std::min(*best, seconds) : seconds;
    chosen = chunk;
  }
  const bool pays = best && (tiles.choice == Choice::kOn ||
                             *best < kClearlyFaster * seconds_whole(product, path));
  return pays ? chosen : 0;
}

}  // namespace strait::strategy
