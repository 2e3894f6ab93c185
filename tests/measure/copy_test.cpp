// Both copies move every byte, at any length.
#include "strait/measure/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <new>

namespace strait::measure {
namespace {

struct Free {
  void operator()(uint8_t* data) const { ::operator delete (data, std::align_val_t{64}); }
};
using Bytes = std::unique_ptr<uint8_t, Free>;
Bytes make_bytes(int64_t count) {
  return Bytes(static_cast<uint8_t*>(::operator new (count, std::align_val_t{64})));
}

TEST(StreamingCopy, MovesEveryByteAndNoMore) {
  for (const int64_t count : {0, 1, 63, 64, 65, 255, 256, 257, 4096, 100003}) {
    const Bytes source = make_bytes(count + 64), destination = make_bytes(count + 64);
    for (int64_t i = 0; i < count + 64; ++i) {
      source.get()[i] = static_cast<uint8_t>(i * 7 + 1);
      destination.get()[i] = 0xee;
    }
    streaming_copy(source.get(), destination.get(), count);
    for (int64_t i = 0; i < count + 64; ++i) {
      ASSERT_EQ(destination.get()[i], i < count ? static_cast<uint8_t>(i * 7 + 1) : 0xee)
          << i << " of " << count;
    }
  }
}

TEST(CopyBuffers, DifferUntilCopied) {
  RankTeam team(3, 1);
  for (const bool streaming : {false, true}) {
    CopyBuffers buffers(team, 10007);
    EXPECT_EQ(buffers.moved_bytes(), 2.0 * 3 * 10007);
    EXPECT_FALSE(buffers.equal());
    EXPECT_GT(buffers.copy(streaming, 2), 0.0);
    EXPECT_TRUE(buffers.equal());
  }
}

TEST(MeasureCopy, GivesBothRates) {
  RankTeam team(2, 1);
  const CopyRates rates = measure_copy(team, 1 << 20, 5);
  // Between what a floppy disk and what a register file moves: only wrong units fall outside.
  for (const double rate : {rates.memcpy_bytes_per_second, rates.streaming_bytes_per_second}) {
    EXPECT_GT(rate, 1e6);
    EXPECT_LT(rate, 1e14);
  }
  EXPECT_EQ(rates.best(),
            std::max(rates.memcpy_bytes_per_second, rates.streaming_bytes_per_second));
}

}  // namespace
}  // namespace strait::measure
