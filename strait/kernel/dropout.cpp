#include "strait/kernel/dropout.h"

#include <algorithm>

#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/kernel/dropout.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

// Plain loops: the compiler vectorises them for the target at hand.
template <class T>
HWY_ATTR void dropout_any(const DropoutCall<T>& call) {
  constexpr int64_t kBlock = 256;
  const DropoutMask mask = *call.mask;
  const Wide<T> scale = static_cast<Wide<T>>(mask.scale);
  Wide<T> factors[kBlock + 2];
  for (int64_t begin = 0; begin < call.count; begin += kBlock) {
    const int64_t count = std::min(kBlock, call.count - begin);
    const uint64_t first = call.first + static_cast<uint64_t>(begin);
    const uint64_t pair = first >> 1;
    for (uint64_t i = 0; i <= kBlock / 2; ++i) {
      const uint64_t draw = mix64(mask.key ^ mix64(pair + i));
      factors[2 * i] = (draw & 0xffffffffU) >= mask.threshold ? scale : Wide<T>{0};
      factors[2 * i + 1] = (draw >> 32) >= mask.threshold ? scale : Wide<T>{0};
    }
    const Wide<T>* factor = factors + (first & 1);
    const T* x = call.x + begin;
    T* out = call.out + begin;
    if (call.base) {
      for (int64_t i = 0; i < count; ++i)
        out[i] = static_cast<T>(call.base[begin + i] + factor[i] * x[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(factor[i] * x[i]);
    }
  }
}
STRAIT_KERNEL_TARGET(dropout, DropoutCall)

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::kernel {

STRAIT_KERNEL_DISPATCH(dropout, DropoutCall)

}  // namespace strait::kernel
#endif
