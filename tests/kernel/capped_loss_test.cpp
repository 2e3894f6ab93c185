// Cross-entropy of logits behind a soft cap, of a whole row and of parts of it, against long
// double.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "strait/base/random.h"
#include "strait/kernel/loss.h"
#include "tests/kernel/edge_vector.h"
#include "tests/kernel/targets.h"

namespace strait::kernel {
namespace {

using Real = long double;

template <class T>
class CappedLoss : public testing::Test {
 protected:
  using W = Wide<T>;
  EdgeVector<W> random_logits(int64_t count) {
    const RandomStream stream(3, "test.capped");
    EdgeVector<W> logits(static_cast<size_t>(count));
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<W>(4 * stream.normal(i));
    return logits;
  }
  /// Of the loss, and of every logit, straight from the definition.
  struct Plain {
    Real loss = 0;
    std::vector<Real> gradient, capped;
  };
  static Plain plain(const EdgeVector<W>& logits, int64_t target, double cap, double scale) {
    Plain result;
    Real sum = 0;
    for (const W logit : logits) {
      result.capped.push_back(cap * std::tanh(static_cast<Real>(logit) / cap));
      sum += std::exp(result.capped.back());
    }
    for (size_t i = 0; i < logits.size(); ++i) {
      const Real part = result.capped[i] / cap;
      const Real one = static_cast<int64_t>(i) == target ? 1 : 0;
      result.gradient.push_back(scale * (std::exp(result.capped[i]) / sum - one) *
                                (1 - part * part));
    }
    result.loss = std::log(sum) - result.capped[static_cast<size_t>(target)];
    return result;
  }
  /// Elements of T from the first of the wide ones on.
  static void expect_gradient(const EdgeVector<W>& where, const Plain& want) {
    const T* got = reinterpret_cast<const T*>(where.data());
    for (size_t i = 0; i < where.size(); ++i)
      ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(want.gradient[i]), limit())
          << i << " of " << where.size();
  }
  /// Gradients are at most 2.5, losses at most 14.
  static double limit() {
    if constexpr (std::is_same_v<T, double>) return 1e-13;
    return std::is_same_v<T, float> ? 2e-6 : 0.01;
  }
  static double loss_limit() { return std::is_same_v<T, double> ? 1e-12 : 1e-5; }
};

using Elements = testing::Types<float, double, Bfloat16>;
TYPED_TEST_SUITE(CappedLoss, Elements);

TYPED_TEST(CappedLoss, OfAWholeRow) {
  using T = TypeParam;
  on_every_target([this] {
    for (const int64_t vocabulary : {1, 3, 17, 300})
      for (const double cap : {0.5, 3.0, 1000.0}) {
        const EdgeVector<Wide<T>> logits = this->random_logits(vocabulary);
        const int64_t target = vocabulary / 2;
        const auto want = this->plain(logits, target, cap, 2.5);
        EdgeVector<Wide<T>> work = logits;
        double loss = 0, alone = 0;
        cross_entropy<T>(
            {vocabulary, work.data(), static_cast<int32_t>(target), false, 2.5, &alone, cap});
        EXPECT_EQ(work, logits) << "without gradient they stay";
        cross_entropy<T>(
            {vocabulary, work.data(), static_cast<int32_t>(target), true, 2.5, &loss, cap});
        EXPECT_EQ(loss, alone);
        EXPECT_NEAR(loss, static_cast<double>(want.loss), this->loss_limit());
        this->expect_gradient(work, want);
        work = logits;
        cap_logits<T>({vocabulary, work.data(), cap});
        for (size_t i = 0; i < work.size(); ++i)
          ASSERT_NEAR(work[i], static_cast<double>(want.capped[i]), 1e-5);
      }
  });
}

/// The ranks of a vocabulary agree on maximum and sum.
TYPED_TEST(CappedLoss, OfTwoPartsOfARow) {
  using T = TypeParam;
  on_every_target([this] {
    const int64_t half = 21, target = 30;
    const double cap = 2.0;
    const EdgeVector<Wide<T>> logits = this->random_logits(2 * half);
    const auto want = this->plain(logits, target, cap, 2.5);
    EdgeVector<Wide<T>> parts[2] = {{logits.begin(), logits.begin() + half},
                                    {logits.begin() + half, logits.end()}};
    double part[2][3];
    for (int64_t rank = 0; rank < 2; ++rank)
      loss_part<T>({half, parts[rank].data(), rank == 1 ? target - half : -1, part[rank], cap});
    const double maximum = std::max(part[0][0], part[1][0]);
    const double sum =
        part[0][1] * std::exp(part[0][0] - maximum) + part[1][1] * std::exp(part[1][0] - maximum);
    EXPECT_NEAR(std::log(sum) + maximum - part[0][2] - part[1][2], static_cast<double>(want.loss),
                this->loss_limit());
    for (int64_t rank = 0; rank < 2; ++rank) {
      loss_slope<T>(
          {half, parts[rank].data(), rank == 1 ? target - half : -1, true, maximum, sum, 2.5, cap});
      auto own = want;
      own.gradient.assign(want.gradient.begin() + rank * half,
                          want.gradient.begin() + (rank + 1) * half);
      this->expect_gradient(parts[rank], own);
    }
  });
}

}  // namespace
}  // namespace strait::kernel
