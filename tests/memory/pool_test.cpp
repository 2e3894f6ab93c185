// What a pool keeps, and what it gives back.
#include "strait/memory/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <vector>

namespace strait::memory {
namespace {

constexpr int64_t kLarge = int64_t{6} << 20;

/// Allocates and releases buffers of these sizes, all alive together.
void use(Pool& pool, const std::vector<int64_t>& sizes, Reach reach = Reach::kOwn) {
  std::vector<void*> buffers;
  for (const int64_t bytes : sizes) {
    auto* const buffer = static_cast<char*>(pool.allocate(bytes, reach));
    buffer[0] = buffer[bytes - 1] = 1;
    buffers.push_back(buffer);
  }
  for (void* buffer : buffers) pool.release(buffer);
}

/// What another computer's part would be: counted.
class Pages final : public PageSource {
 public:
  void* allocate(int64_t bytes) override {
    held += bytes;
    void* const pointer = std::aligned_alloc(64, static_cast<size_t>(bytes));
    sizes_[pointer] = bytes;
    return pointer;
  }
  void release(void* pointer) override {
    held -= sizes_.at(pointer);
    sizes_.erase(pointer);
    std::free(pointer);
  }
  int64_t held = 0;

 private:
  std::map<void*, int64_t> sizes_;
};

TEST(Pool, EqualSizesTakeNothingMoreFromTheSystem) {
  Pool pool;
  use(pool, {100, 5000, kLarge});
  const int64_t first = pool.system_allocations(), held = pool.held_bytes();
  EXPECT_EQ(first, 3);
  for (int turn = 0; turn < 3 * Pool::kKeptTurns; ++turn) {
    pool.begin_turn();
    use(pool, {kLarge, 5000, 100});
  }
  EXPECT_EQ(pool.system_allocations(), first);
  EXPECT_EQ(pool.held_bytes(), held);
  EXPECT_EQ(pool.live_bytes(), 0);
  EXPECT_EQ(pool.peak_bytes(), 100 + 5000 + kLarge);
}

TEST(Pool, KeepsWhatHasNoTurns) {
  Pool pool;
  for (int64_t size = 1; size <= 8; ++size) use(pool, {size << 12 << size});
  EXPECT_EQ(pool.system_allocations(), 8);
  use(pool, {int64_t{1} << 13});
  EXPECT_EQ(pool.system_allocations(), 8);
}

/// Turns have ten sizes in turn, four times as large as the next, so that no kept buffer serves
/// another size.
TEST(Pool, WhatWasNotUsedForSomeTurnsGoesBack) {
  for (const Reach reach : {Reach::kOwn, Reach::kShared}) {
    Pages pages;
    Pool pool(&pages);
    void* const used = pool.allocate(kLarge, reach);
    const auto size_of = [](int64_t turn) { return int64_t{64} << 2 * (turn * 3 % 10); };
    for (int64_t turn = 0; turn < 30; ++turn) {
      pool.begin_turn();
      use(pool, {size_of(turn)}, reach);
      int64_t held = kLarge;
      for (int64_t last = std::max<int64_t>(turn - Pool::kKeptTurns, 0); last <= turn; ++last)
        held += size_of(last);
      EXPECT_EQ(pool.held_bytes(), held) << turn;
      if (reach == Reach::kShared) EXPECT_EQ(pages.held, held);
    }
    EXPECT_EQ(pool.system_allocations(), 31);
    static_cast<char*>(used)[kLarge - 1] = 1;
    pool.release(used);
  }
}

}  // namespace
}  // namespace strait::memory
