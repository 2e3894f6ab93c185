// What a pool keeps, and whom it serves with it.
#include "strait/memory/pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "strait/base/errors.h"

namespace strait::memory {
namespace {

constexpr int64_t kLarge = int64_t{6} << 20;

/// Allocates and releases buffers of these sizes, all alive together.
void use(Pool& pool, const std::vector<int64_t>& sizes) {
  std::vector<void*> buffers;
  for (const int64_t bytes : sizes) {
    auto* const buffer = static_cast<char*>(pool.allocate(bytes));
    buffer[0] = buffer[bytes - 1] = 1;
    buffers.push_back(buffer);
  }
  for (void* buffer : buffers) pool.release(buffer);
}

TEST(Pool, EqualSizesTakeNothingMoreFromTheSystem) {
  Pool pool;
  use(pool, {100, 5000, kLarge});
  const int64_t first = pool.system_allocations();
  EXPECT_EQ(first, 3);
  for (int step = 0; step < 10; ++step) use(pool, {kLarge, 5000, 100});
  EXPECT_EQ(pool.system_allocations(), first);
  EXPECT_EQ(pool.live_bytes(), 0);
  EXPECT_EQ(pool.peak_bytes(), 100 + 5000 + kLarge);
}

/// A kept buffer serves what fills at least half of it.
TEST(Pool, KeptBuffersServeWhatFillsHalfOfThem) {
  Pool pool;
  use(pool, {kLarge});
  use(pool, {kLarge / 2});
  EXPECT_EQ(pool.system_allocations(), 1);
  use(pool, {kLarge / 2 - 1});
  EXPECT_EQ(pool.system_allocations(), 2);
  use(pool, {kLarge, kLarge});
  EXPECT_EQ(pool.system_allocations(), 3);
}

TEST(Pool, ABufferOfAnotherPoolIsRefused) {
  Pool pool, other;
  void* const buffer = pool.allocate(100);
  EXPECT_THROW(other.release(buffer), InternalError);
  pool.release(buffer);
  EXPECT_THROW(pool.release(buffer), InternalError);
}

}  // namespace
}  // namespace strait::memory
