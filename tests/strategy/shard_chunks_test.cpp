// Chunks of shards beside a gather or a scatter: closed forms of two resources, bounds, and what
// decides for or against them (specs: overlap 7b, invariants X2 and X4).
#include <gtest/gtest.h>

#include <algorithm>

#include "strait/strategy/tiles/shard_chunks.h"

namespace strait::strategy {
namespace {

using draft::Tiles;
using enum Tiles::Choice;

/// `ranks` on one link each, over which every part of a whole exchange takes (n - 1) / n of
/// bytes / rate.
SumPath star(int64_t ranks, double bytes_per_second, double latency_seconds = 0) {
  Cluster cluster;
  cluster.levels = {{"world", ranks, bytes_per_second, latency_seconds, 1}};
  cluster.ranks = ranks;
  return {{ranks}, cluster};
}

/// A second of product with 1e6 bytes of rows, of which (n - 1) / n pass the links.
ShardedProduct second(bool gathers, int64_t ranks, int64_t shard_rows = 1200) {
  ShardedProduct product;
  product.gathers = gathers;
  product.shard_rows = shard_rows;
  product.row_bytes = 1000000 / (ranks * shard_rows);
  product.product_seconds = 1;
  return product;
}

double exchange(const ShardedProduct& product, int64_t ranks, double rate) {
  return static_cast<double>((ranks - 1) * product.shard_rows * product.row_bytes) / rate;
}

TEST(ShardChunks, WholeOnesFollowEachOther) {
  for (const bool gathers : {true, false})
    for (const int64_t ranks : {2, 4}) {
      const ShardedProduct product = second(gathers, ranks);
      EXPECT_NEAR(seconds_whole(product, star(ranks, 1e6)), 1 + exchange(product, ranks, 1e6),
                  1e-9);
    }
}

/// The own shard hides the exchange of the first or last chunk, others hide each other.
TEST(ShardChunks, TakeTheLongerOfBothAndHalfAPeriod) {
  for (const bool gathers : {true, false})
    for (const int64_t ranks : {2, 4, 8})
      for (const int64_t chunks : {1, 2, 4, 12}) {
        const ShardedProduct product = second(gathers, ranks);
        const int64_t chunk = product.shard_rows / chunks;
        const double overheads = static_cast<double>((ranks - 1) * chunks) * kIssueSeconds;
        const auto seconds = [&](double rate) {
          return seconds_by_shards(product, chunk, star(ranks, rate));
        };
        // Links as fast as products, of what passes them: n / (n - 1) of a shard's product.
        const double even = exchange(product, ranks, 1);
        EXPECT_GE(seconds(even), std::max(1.0, exchange(product, ranks, even)));
        EXPECT_LE(seconds(even), 1 + overheads + 1 / static_cast<double>(ranks * chunks) +
                                     1 / static_cast<double>((ranks - 1) * chunks));
        // Slow links: all but a chunk's product is hidden.
        const double slow = exchange(product, ranks, 1e3);
        EXPECT_NEAR(seconds(1e3), slow + 1 / static_cast<double>(ranks * chunks),
                    2 * overheads + 1e-6);
        // Fast ones: nothing is left but what calls cost (X2).
        EXPECT_NEAR(seconds(1e30), 1, overheads + 1e-9);
      }
}

TEST(ShardChunks, StandBesideWhatComesBetween) {
  for (const bool gathers : {true, false}) {
    ShardedProduct product = second(gathers, 2);
    product.beside_seconds = 1;
    EXPECT_NEAR(seconds_whole(product, star(2, 1e6)), 2, 1e-9);
    EXPECT_NEAR(seconds_by_shards(product, 1200, star(2, 1e6)), 2, 1e-3);
    EXPECT_EQ(choose_shard_chunk(product, {kAuto}, star(2, 1e6)), 0) << "hidden already";
    EXPECT_GT(choose_shard_chunk(product, {kOn}, star(2, 1e6)), 0);
  }
}

TEST(ShardChunks, PayForTheSumOfWhatHasCome) {
  ShardedProduct product = second(false, 2);
  product.sum_seconds = 0.6;
  EXPECT_EQ(choose_shard_chunk(product, {kAuto}, star(2, 1e6)), 0);
  product.sum_seconds = 0.1;
  EXPECT_GT(choose_shard_chunk(product, {kAuto}, star(2, 1e6)), 0);
}

TEST(ShardChunks, GrowWithTheirOverhead) {
  for (const bool gathers : {true, false}) {
    ShardedProduct product = second(gathers, 2);
    const auto count = [&](double latency_seconds) {
      const int64_t chunk = choose_shard_chunk(product, {kAuto}, star(2, 5e5, latency_seconds));
      return chunk == 0 ? 0 : (1200 + chunk - 1) / chunk;
    };
    const int64_t free = count(0);
    EXPECT_GT(free, 4);
    EXPECT_LT(count(0.02), free);
    EXPECT_EQ(count(1), 1) << "two ranks need one shift, and no more latencies than whole";
    product.call_seconds = 2;
    EXPECT_EQ(count(0), 0);
  }
}

/// The exchanges and products of one block of 768 at x = 2, 512 rows of a rank: seconds of products
/// on one core, 401 Mbit/s between hosts (bench/records/2026-11-26-shift-gaps.md). Two or three
/// chunks measure best there, because each further one leaves the link unused for a while.
TEST(ShardChunks, AreAsFewAsMeasureBestWhereTransfersShareTheProcessor) {
  constexpr double kRate = 47.7e6, kLatency = 0.3e-3, kLate = 1e-3, kCall = 0.5e-3;
  for (const bool gathers : {true, false})
    for (const auto& [product_seconds, most] : {std::pair(30e-3, 3), {22.5e-3, 3}, {7.4e-3, 2}}) {
      ShardedProduct product;
      product.gathers = gathers;
      product.shard_rows = 512;
      product.row_bytes = 768 * 4;
      product.product_seconds = product_seconds;
      product.call_seconds = kCall;
      SumPath path = star(2, kRate, kLatency);
      path.cluster.levels[0].processor_share = 0.1;
      // The link is never free before all shifts have passed; beside them stands all but a chunk.
      const auto plain = [&](int64_t chunks) {
        const auto parts = static_cast<double>(chunks);
        return 512 * 768 * 4 / kRate + parts * (kLatency + kLate) +
               product.product_seconds / 2 / parts + kCall + kIssueSeconds;
      };
      const auto count = [&] {
        const int64_t chunk = choose_shard_chunk(product, {kOn}, path);
        return (512 + chunk - 1) / chunk;
      };
      double best = plain(1);
      for (int64_t chunks = 2; chunks <= kMostChunks; ++chunks)
        best = std::min(best, plain(chunks));
      EXPECT_LE(count(), most) << product_seconds;
      EXPECT_NEAR(plain(count()), best, 0.012 * best) << product_seconds;
      EXPECT_NEAR(seconds_by_shards(product, 512 / 2, path), plain(2), kCall + kIssueSeconds);
      path.cluster.levels[0].processor_share = 0;
      path.cluster.levels[0].latency_seconds = 0;
      EXPECT_GT(count(), most) << "where nothing is late";
    }
}

/// X4: rows that chunks do not divide, one row, none.
TEST(ShardChunks, AsManyAsAreAskedForAndNoMoreThanThereAreRows) {
  for (const int64_t rows : {1, 2, 3, 7, 16, 17})
    for (const int64_t chunks : {1, 2, 3, 100})
      EXPECT_EQ(choose_shard_chunk(second(true, 2, rows), {kOn, chunks}, star(2, 1e6)),
                (rows + std::min(rows, chunks) - 1) / std::min(rows, chunks));
  EXPECT_EQ(choose_shard_chunk(second(true, 2, 16), {kOn}, star(2, 1e6)), 16);
  EXPECT_EQ(choose_shard_chunk(second(true, 2, 15), {kOn}, star(2, 1e6)), 0) << "too few unasked";
  EXPECT_EQ(choose_shard_chunk({.product_seconds = 1}, {kOn, 2}, star(2, 1e6)), 0);
  EXPECT_EQ(choose_shard_chunk(second(true, 2), {kOff}, star(2, 1e6)), 0);
}

/// Inside parts sums would move fewer bytes.
TEST(ShardChunks, StayWholeOnGroupsThatALevelParts) {
  Cluster cluster;
  cluster.levels = {{"node", 2, 1e9, 1e-6, 1}, {"world", 2, 1e6, 1e-6, 1}};
  cluster.ranks = 4;
  EXPECT_EQ(choose_shard_chunk(second(true, 4), {kOn, 2}, {{2, 4}, cluster}), 0);
  EXPECT_GT(choose_shard_chunk(second(true, 2), {kOn, 2}, {{1, 2}, cluster}), 0);
  EXPECT_GT(choose_shard_chunk(second(true, 2), {kOn, 2}, {{2, 2}, cluster}), 0);
}

}  // namespace
}  // namespace strait::strategy
