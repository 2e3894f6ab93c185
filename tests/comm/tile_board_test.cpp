// Tiles read in place under the flags of a board (specs: overlap 7b, invariants X5 and X7): 10,000
// epochs with random delays and no stale row, and deadlines that name the rank that is missed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <thread>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/comm/threads/tile_board.h"
#include "tests/sanitized.h"

namespace strait::comm {
namespace {

constexpr double kDeadline = 60;

void on_ranks(int64_t ranks, const std::function<void(int64_t)>& body) {
  std::vector<std::jthread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
}

/// What a rank writes into all elements of a tile: an exact number, another one in every epoch.
uint64_t written(uint32_t epoch, int64_t rank, int64_t tile) {
  return static_cast<uint64_t>(epoch) << 16 | static_cast<uint64_t>(rank << 8 | tile);
}

struct Case {
  int64_t ranks, tiles, elements;
  uint32_t first_epoch = 0;
};

/// Ranks write their tiles, publish each, and read those of the others in the order of the ranks
/// behind; a buffer is written again once all have read it.
void run_epochs(const Case& c, uint32_t epochs) {
  TileBoard board(c.ranks, c.tiles);
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    board.finish(rank, c.first_epoch);
    for (int64_t tile = 0; tile < c.tiles; ++tile) board.publish(rank, tile, c.first_epoch);
  }
  std::vector<std::vector<uint64_t>> buffers(static_cast<size_t>(c.ranks));
  for (auto& buffer : buffers) buffer.resize(static_cast<size_t>(c.tiles * c.elements));
  std::atomic<int64_t> stale{0};
  on_ranks(c.ranks, [&](int64_t rank) {
    const RandomStream stream(5, "delay", static_cast<uint64_t>(rank));
    uint64_t drawn = 0;
    const auto delay = [&] {
      const uint64_t kind = stream.below(drawn++, 64);
      if (kind == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
      for (uint64_t turns = kind % 4; turns > 0; --turns) std::this_thread::yield();
    };
    for (uint32_t turn = 1; turn <= epochs; ++turn) {
      const uint32_t epoch = c.first_epoch + turn;
      board.await_readers(rank, epoch - 1, kDeadline);
      for (int64_t tile = 0; tile < c.tiles; ++tile) {
        delay();
        std::fill_n(&buffers[static_cast<size_t>(rank)][static_cast<size_t>(tile * c.elements)],
                    c.elements, written(epoch, rank, tile));
        board.publish(rank, tile, epoch);
      }
      for (int64_t step = 1; step < c.ranks; ++step)
        for (int64_t tile = 0; tile < c.tiles; ++tile) {
          const int64_t owner = (rank + step) % c.ranks;
          board.await(owner, tile, epoch, kDeadline);
          delay();
          const uint64_t* rows =
              &buffers[static_cast<size_t>(owner)][static_cast<size_t>(tile * c.elements)];
          stale += c.elements - std::count(rows, rows + c.elements, written(epoch, owner, tile));
        }
      board.finish(rank, epoch);
    }
  });
  EXPECT_EQ(stale, 0);
}

TEST(TileBoard, TenThousandEpochsReadNothingStale) {
  run_epochs({.ranks = 3, .tiles = 2, .elements = 40},
             static_cast<uint32_t>(test::repetitions(10000, 500)));
}

TEST(TileBoard, OfAnyNumberOfRanksAndTiles) {
  for (const int64_t ranks : {1, 2, 4, 8})
    for (const int64_t tiles : {1, 3, 16}) run_epochs({ranks, tiles, 5}, 50);
}

/// Counters wrap around.
TEST(TileBoard, EpochsOutliveTheirCounter) {
  run_epochs({2, 2, 4, std::numeric_limits<uint32_t>::max() - 50}, 100);
}

std::string awaited(const std::function<void()>& wait, int64_t rank) {
  const double began = now_seconds();
  try {
    wait();
  } catch (const Timeout& error) {
    EXPECT_EQ(error.place().rank, rank);
    EXPECT_GE(now_seconds() - began, 0.1);
    EXPECT_LT(now_seconds() - began, 0.1 + 1 * test::kSlowdown);
    return error.what();
  }
  return "nobody was missed";
}

/// X7: a rank that is gone is named by everybody who waits for it, and nobody spins for ever.
TEST(TileBoard, ALostRankIsNamed) {
  using testing::HasSubstr;
  TileBoard board(4, 3);
  board.publish(2, 0, 7);
  on_ranks(2, [&](int64_t) {
    EXPECT_NO_THROW(board.await(2, 0, 7, 0.1));
    EXPECT_THAT(awaited([&] { board.await(2, 1, 7, 0.1); }, 2),
                HasSubstr("rank 2 has not published tile 1 of epoch 7 within 0.1 s; it stands at "
                          "epoch 0"));
    EXPECT_THAT(awaited([&] { board.await(2, 0, 8, 0.1); }, 2), HasSubstr("it stands at epoch 7"));
  });
  for (const int64_t rank : {0, 1, 2}) board.finish(rank, 7);
  EXPECT_THAT(awaited([&] { board.await_readers(0, 7, 0.1); }, 3),
              HasSubstr("rank 3 has not finished reading epoch 7"));
  EXPECT_NO_THROW(board.await_readers(3, 7, 0.1));
}

}  // namespace
}  // namespace strait::comm
