// Which messages between hosts go in pieces that need no handshake.
#include <gtest/gtest.h>

#include "strait/comm/mpi/pieces.h"

namespace strait::comm {
namespace {

int64_t pieces_at(int64_t bytes, double bytes_per_second) {
  return pieces_of(bytes, static_cast<double>(bytes) / bytes_per_second);
}

TEST(Pieces, NoneWaitsForAHandshakeThatCostsMoreThanTheMessage) {
  const int64_t shard = 512 * 768 * 4;  // of 31 ms at 400 Mbit/s
  EXPECT_EQ(pieces_at(shard, 50e6), (shard + kPieceBytes - 1) / kPieceBytes);
  EXPECT_EQ(pieces_at(shard / 16, 50e6), 2);
  EXPECT_EQ(pieces_at(shard, 1e9), 26);
}

TEST(Pieces, ShortMessagesAndThoseOfFastLinksStayWhole) {
  EXPECT_EQ(pieces_at(0, 50e6), 1);
  EXPECT_EQ(pieces_at(kPieceBytes, 1e6), 1) << "sent unasked as it is";
  EXPECT_EQ(pieces_at(int64_t{1} << 20, 12e9), 1);
  EXPECT_EQ(pieces_at(int64_t{1} << 28, 12e9), 1) << "22 ms";
  EXPECT_GT(pieces_at(int64_t{1} << 30, 12e9), 1) << "89 ms";
}

}  // namespace
}  // namespace strait::comm
