#include "strait/kernel/normal.h"

#include <cmath>
#include <numbers>

#include "strait/base/random.h"
#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/kernel/normal.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

constexpr int64_t kPairs = 128;

/// Normals of the pairs [pair, pair + kPairs): elements 2 pair, ....
HWY_ATTR inline void normal_pairs(uint64_t key, uint64_t pair, double deviation, double* cosines,
                                  double* sines) {
  HWY_ALIGN double radius[kPairs];
  HWY_ALIGN double angle[kPairs];
  for (uint64_t i = 0; i < kPairs; ++i) {
    const uint64_t counter = 2 * (pair + i);
    const uint64_t first = mix64(key ^ mix64(counter)) >> 11,
                   second = mix64(key ^ mix64(counter + 1)) >> 11;
    radius[i] = 1.0 - static_cast<double>(static_cast<int64_t>(first)) * 0x1.0p-53;  // in (0, 1]
    angle[i] =
        static_cast<double>(static_cast<int64_t>(second)) * (0x1.0p-53 * 2.0 * std::numbers::pi);
  }
  const hn::ScalableTag<double> d;
  for (int64_t i = 0; i < kPairs; i += lanes_of(d)) {
    const auto squared = hn::Mul(hn::Set(d, -2.0), hn::Log(d, hn::Load(d, radius + i)));
    // Log may round to a value just above 0 for arguments next to 1.
    const auto length = hn::Mul(hn::Sqrt(hn::Max(squared, hn::Zero(d))), hn::Set(d, deviation));
    const auto phase = hn::Load(d, angle + i);
    hn::StoreU(hn::Mul(length, hn::Cos(d, phase)), d, cosines + i);
    hn::StoreU(hn::Mul(length, hn::Sin(d, phase)), d, sines + i);
  }
}

template <class T>
HWY_ATTR void normal_any(const NormalCall<T>& call) {
  HWY_ALIGN double cosines[kPairs];
  HWY_ALIGN double sines[kPairs];
  int64_t done = 0;
  while (done < call.count) {
    const uint64_t element = call.first + static_cast<uint64_t>(done);
    normal_pairs(call.key, element >> 1, call.deviation, cosines, sines);
    const int64_t odd = static_cast<int64_t>(element & 1);
    const int64_t count = std::min(2 * kPairs - odd, call.count - done);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = i + odd;
      call.out[done + i] = static_cast<T>(index % 2 == 0 ? cosines[index / 2] : sines[index / 2]);
    }
    done += count;
  }
}
STRAIT_KERNEL_TARGET(normal, NormalCall)

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::kernel {

STRAIT_KERNEL_DISPATCH(normal, NormalCall)

}  // namespace strait::kernel
#endif
