// Into how many chunks a product and its sum are taken apart: closed forms of their time, odd
// numbers of rows, and what must not change with the number of chunks.
#include <gtest/gtest.h>

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/strategy/tiles/chunks.h"

namespace strait::strategy {
namespace {

using draft::Tiles;
using enum Tiles::Choice;

/// Two ranks on one link: a sum of V bytes takes V bytes' time, and two latencies.
SumPath pair(double bytes_per_second, double latency_seconds = 0) {
  Cluster cluster;
  cluster.levels = {{"world", 2, bytes_per_second, latency_seconds, 1}};
  cluster.ranks = 2;
  return {{2}, cluster};
}

/// A second of product whose sum takes a second at 1e6 bytes per second.
SummedProduct equal(int64_t rows) {
  SummedProduct product;
  product.rows = rows;
  product.row_bytes = 1000000 / rows;
  product.product_seconds = 1;
  return product;
}

TEST(Chunks, TakeTheTimeOfTwoResourcesOneBehindTheOther) {
  const SummedProduct product = equal(1000);
  EXPECT_DOUBLE_EQ(seconds_in_chunks(product, 1000, pair(1e6)), 2);
  for (const int64_t chunks : {2, 4, 10})
    EXPECT_NEAR(seconds_in_chunks(product, 1000 / chunks, pair(1e6)),
                1 + 1.0 / static_cast<double>(chunks), 1e-3);
  // The longer of both counts whole, of the other the part that nothing hides.
  EXPECT_NEAR(seconds_in_chunks(product, 100, pair(1e5)), 10.1, 1e-3);
  EXPECT_NEAR(seconds_in_chunks(product, 100, pair(1e7)), 1.01, 1e-3);
  // With unlimited links a sum costs nothing, but each call does.
  EXPECT_NEAR(seconds_in_chunks(product, 100, pair(1e30)), 1, 1e-3);
}

TEST(Chunks, StandBesideWhatIsComputedBehindThem) {
  SummedProduct product = equal(1000);
  product.behind_seconds = 1;
  EXPECT_DOUBLE_EQ(seconds_in_chunks(product, 1000, pair(1e6)), 2);
  EXPECT_EQ(choose_chunk(product, {kAuto}, pair(1e6)), 1000) << "the sum is hidden already";
  EXPECT_LT(choose_chunk(product, {kOn}, pair(1e6)), 1000);
}

TEST(Chunks, GrowWithTheirOverhead) {
  SummedProduct product = equal(1000);
  const auto count = [&](double latency_seconds) {
    const int64_t chunk = choose_chunk(product, {kAuto}, pair(1e6, latency_seconds));
    return (1000 + chunk - 1) / chunk;
  };
  // 1 + 1 / c is within 1 % of 1 + 1 / kMostChunks.
  EXPECT_EQ(count(0), 14);
  // c* is near sqrt(T / overhead), of two latencies: 10, 5, 2.2.
  EXPECT_NEAR(static_cast<double>(count(0.005)), 10, 2);
  EXPECT_NEAR(static_cast<double>(count(0.02)), 5, 1);
  EXPECT_NEAR(static_cast<double>(count(0.1)), 2.2, 1);
  EXPECT_EQ(count(1), 1);
  product.call_seconds = 0.25;
  EXPECT_EQ(count(0), 2);
  product.call_seconds = 2;
  EXPECT_EQ(count(0), 1);
}

TEST(Chunks, AsManyAsAreAskedForAndNoMoreThanThereAreRows) {
  for (const int64_t rows : {2, 3, 7, 16, 17, 1000})
    for (const int64_t chunks : {1, 2, 3, 5, 16, 100}) {
      const int64_t chunk = choose_chunk(equal(rows), {kOn, chunks}, pair(1e6));
      EXPECT_EQ(chunk, (rows + std::min(rows, chunks) - 1) / std::min(rows, chunks));
    }
  EXPECT_EQ(choose_chunk(equal(1), {kOn, 4}, pair(1e6)), 1);
}

TEST(Chunks, OfTooFewRowsAreNotMadeUnasked) {
  for (const Tiles::Choice choice : {kAuto, kOn}) {
    EXPECT_EQ(choose_chunk(equal(2 * kLeastChunkRows - 2), {choice}, pair(1e6)),
              2 * kLeastChunkRows - 2);
    EXPECT_EQ(choose_chunk(equal(2 * kLeastChunkRows), {choice}, pair(1e6)), kLeastChunkRows);
  }
  EXPECT_EQ(choose_chunk(equal(1000), {kOff}, pair(1e6)), 1000);
}

/// A group on two levels: large vectors take the hierarchical form, small ones the direct one.
TEST(Chunks, GoTheWayOfTheWhole) {
  Cluster cluster;
  cluster.levels = {{"node", 4, 1e9, 1e-3, 1}, {"world", 4, 1e9, 1e-3, 1}};
  cluster.ranks = 16;
  const SumPath path{{4, 16}, cluster};
  const auto form = [&](double bytes) {
    return collective::choose(collective::Operation::kAllReduce, bytes, path.spread, cluster);
  };
  SummedProduct product = equal(1000);
  int64_t fewer = 0;
  for (product.row_bytes = 1; product.row_bytes < 1000000; product.row_bytes *= 2) {
    const int64_t chunk = choose_chunk(product, {kOn, 50}, path);
    EXPECT_EQ(form(static_cast<double>(chunk * product.row_bytes)),
              form(static_cast<double>(1000 * product.row_bytes)));
    fewer += chunk > 20;
  }
  EXPECT_GT(fewer, 0) << "the test sees no border between the forms";
}

TEST(Chunks, AreReadFromTheirKey) {
  EXPECT_EQ(draft::parse_tiles("off").choice, kOff);
  EXPECT_EQ(draft::parse_tiles("auto").choice, kAuto);
  EXPECT_EQ(draft::parse_tiles("on").chunks, 0);
  EXPECT_EQ(draft::parse_tiles("on:5").chunks, 5);
  for (const char* text : {"", "on:", "on:0", "on:-1", "on:2x", "5", "On"})
    EXPECT_THROW(draft::parse_tiles(text), UserError) << text;
}

}  // namespace
}  // namespace strait::strategy
