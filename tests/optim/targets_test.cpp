// Every vector width with fused multiply-add gives the same bits, tails included.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "hwy/targets.h"
#include "strait/optim/adamw.h"
#include "strait/optim/norm.h"
#include "strait/optim/sgd.h"
#include "tests/optim/inputs.h"

namespace strait::optim {
namespace {

/// Highway serves only `targets` while this lives.
class OnlyTargets {
 public:
  explicit OnlyTargets(int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~OnlyTargets() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

/// Weights, moments and the norm after one update of each kind.
template <class T>
std::vector<T> results(int64_t length) {
  auto weights = sample_values<T>(length, 1, 1.0);
  const auto gradients = sample_values<T>(length, 2, 0.1);
  auto first = sample_values<T>(length, 3, 0.01);
  auto second = sample_values<T>(length, 4, 0.001);
  for (T& value : second) value = std::abs(value);
  const double norm = squared_norm(std::span<const T>(gradients), 1);
  adamw_update(AdamWBuffers<T>{weights, gradients, first, second},
               {.weight_decay = 0.1, .gradient_scale = 0.3, .step = 2}, 1);
  sgd_update(SgdBuffers<T>{weights, gradients, first}, {.weight_decay = 0.1}, 1);
  for (const auto* more : {&first, &second})
    weights.insert(weights.end(), more->begin(), more->end());
  T bits[2] = {};
  std::memcpy(bits, &norm, sizeof(norm));
  weights.insert(weights.end(), bits, bits + sizeof(norm) / sizeof(T));
  return weights;
}

template <class T>
void expect_equal_bits() {
  const int64_t with_fma = HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL | HWY_NEON;
  const int64_t here = hwy::SupportedTargets() & HWY_TARGETS & with_fma;
  for (const int64_t length : {1, 7, 15, 17, 1021, 20001}) {
    const std::vector<T> wanted = results<T>(length);
    for (int64_t rest = here; rest != 0; rest &= rest - 1) {
      const int64_t target = rest & -rest;
      SCOPED_TRACE(::testing::Message() << hwy::TargetName(target) << ", " << length);
      const OnlyTargets only(target);
      const std::vector<T> actual = results<T>(length);
      ASSERT_EQ(std::memcmp(actual.data(), wanted.data(), wanted.size() * sizeof(T)), 0);
    }
  }
}

TEST(Targets, GiveTheSameBitsInFloat) { expect_equal_bits<float>(); }
TEST(Targets, GiveTheSameBitsInDouble) { expect_equal_bits<double>(); }

}  // namespace
}  // namespace strait::optim
