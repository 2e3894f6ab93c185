#include "strait/kernel/rope.h"

#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/kernel/rope.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

template <class T>
HWY_ATTR void rotate_any(const RotateCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  const int64_t half = call.head_width / 2;
  for (int64_t head = 0; head < call.heads; ++head) {
    T* low = call.x + head * call.head_width;
    T* high = low + half;
    for (int64_t i = 0; i < half; i += lanes_of(d)) {
      const int64_t left = half - i;
      const auto cosine = load_part(d, call.cosines + i, left);
      const auto forward = load_part(d, call.sines + i, left);
      const auto sine = call.back ? hn::Neg(forward) : forward;
      const auto a = load_part(d, low + i, left), b = load_part(d, high + i, left);
      store_part(d, hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), low + i, left);
      store_part(d, hn::MulAdd(a, sine, hn::Mul(b, cosine)), high + i, left);
    }
  }
}
STRAIT_KERNEL_TARGET(rotate, RotateCall)

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::kernel {

STRAIT_KERNEL_DISPATCH(rotate, RotateCall)

}  // namespace strait::kernel
#endif
