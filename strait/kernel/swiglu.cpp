#include "strait/kernel/swiglu.h"

#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/kernel/swiglu.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

/// 1 / (1 + exp(-x)); the exponent is bounded so that exp stays finite.
template <class D, class V>
HWY_ATTR inline V sigmoid(D d, V x) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T{1});
  return hn::Div(one, hn::Add(one, hn::Exp(d, hn::Min(hn::Neg(x), hn::Set(d, T{80})))));
}

template <class T>
HWY_ATTR void swiglu_any(const SwigluCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* gates = call.x + row * 2 * call.columns;
    const T* ups = gates + call.columns;
    T* out = call.out + row * call.out_stride;
    for (int64_t c = 0; c < call.columns; c += lanes_of(d)) {
      const int64_t left = call.columns - c;
      const auto gate = load_part(d, gates + c, left);
      const auto silu = hn::Mul(gate, sigmoid(d, gate));
      store_part(d, hn::Mul(silu, load_part(d, ups + c, left)), out + c, left);
    }
  }
}
STRAIT_KERNEL_TARGET(swiglu, SwigluCall)

// With y = g s u: dy/du = g s, dy/dg = u (s + g s (1 - s)).
template <class T>
HWY_ATTR void swiglu_backward_any(const SwigluBackwardCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  const auto one = hn::Set(d, Wide<T>{1});
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t wide = row * 2 * call.columns;
    T* out = call.out + row * call.columns;
    for (int64_t c = 0; c < call.columns; c += lanes_of(d)) {
      const int64_t left = call.columns - c;
      const auto gate = load_part(d, call.x + wide + c, left);
      const auto up = load_part(d, call.x + wide + call.columns + c, left);
      const auto gradient = load_part(d, out + c, left);
      const auto s = sigmoid(d, gate);
      const auto silu = hn::Mul(gate, s);
      const auto slope = hn::MulAdd(silu, hn::Sub(one, s), s);
      store_part(d, hn::Mul(silu, up), out + c, left);
      store_part(d, hn::Mul(hn::Mul(gradient, up), slope), call.gradient + wide + c, left);
      store_part(d, hn::Mul(gradient, silu), call.gradient + wide + call.columns + c, left);
    }
  }
}
STRAIT_KERNEL_TARGET(swiglu_backward, SwigluBackwardCall)

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::kernel {

STRAIT_KERNEL_DISPATCH(swiglu, SwigluCall)
STRAIT_KERNEL_DISPATCH(swiglu_backward, SwigluBackwardCall)

}  // namespace strait::kernel
#endif
