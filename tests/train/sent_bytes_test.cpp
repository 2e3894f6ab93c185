// Bytes of a step are those of all ranks, however many steps these are apart.
#include "strait/train/sent_bytes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace strait::train {
namespace {

using Bytes = std::vector<int64_t>;

TEST(SentBytes, AreThoseOfAStepWhoeverIsAhead) {
  constexpr int64_t kSteps = 50, kRanks = 4;
  SentBytes sent(60);
  std::vector<std::thread> ranks;
  for (int64_t rank = 1; rank < kRanks; ++rank)
    ranks.emplace_back([&sent, rank] {
      const SentBytes::Presence presence(sent);
      for (int64_t step = 1; step <= kSteps; ++step) {
        if (rank == 2 && step % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        sent.add(step, {rank * step, 1});
      }
    });
  for (int64_t step = 1; step <= kSteps; ++step) {
    sent.add(step, {0, 1});
    EXPECT_EQ(sent.of_all(step, kRanks), (Bytes{6 * step, kRanks})) << step;
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(SentBytes, NobodyWaitsForARankThatHasFailed) {
  SentBytes sent(60);
  std::thread rank([&sent] {
    try {
      const SentBytes::Presence presence(sent);
      sent.add(1, {5});
      throw std::runtime_error("lost");
    } catch (const std::runtime_error&) {
    }
  });
  sent.add(1, {2});
  EXPECT_EQ(sent.of_all(1, 2), Bytes{7});
  sent.add(2, {2});
  EXPECT_EQ(sent.of_all(2, 2), Bytes{2});
  rank.join();
}

TEST(SentBytes, ARankThatIsBehindForTooLongIsLeftOut) {
  SentBytes sent(0.01);
  sent.add(1, {3});
  EXPECT_EQ(sent.of_all(1, 2), Bytes{3});
}

}  // namespace
}  // namespace strait::train
