// The sigmoid, the gate of GELU's tanh form, the soft cap. Included once per target by
// foreach_target.h.
#if defined(STRAIT_KERNEL_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRAIT_KERNEL_ACTIVATION_INL_H_
#undef STRAIT_KERNEL_ACTIVATION_INL_H_
#else
#define STRAIT_KERNEL_ACTIVATION_INL_H_
#endif

#include "hwy/highway.h"
// After highway.h.
#include "hwy/contrib/math/math-inl.h"
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

constexpr double kTwiceRoot = 1.5957691216057308;  // 2 sqrt(2 / pi)
constexpr double kCube = 0.044715;

/// 1 / (1 + exp(x)); the exponent is bounded so that exp stays finite.
template <class D, class V>
HWY_ATTR inline V gate_of(D d, V x) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T{1});
  return hn::Div(one, hn::Add(one, hn::Exp(d, hn::Min(x, hn::Set(d, T{80})))));
}

/// 1 / (1 + exp(-x)).
template <class D, class V>
HWY_ATTR inline V sigmoid(D d, V x) {
  return gate_of(d, hn::Neg(x));
}

/// s(x) = 1 / (1 + exp(-2 u)) of elementwise.h.
template <class D, class V>
HWY_ATTR inline V gelu_gate(D d, V x) {
  using T = hn::TFromD<D>;
  const V square = hn::Mul(x, x);
  const V slope = hn::MulAdd(square, hn::Set(d, static_cast<T>(-kTwiceRoot * kCube)),
                             hn::Set(d, static_cast<T>(-kTwiceRoot)));
  return gate_of(d, hn::Mul(x, slope));
}

/// Slope of y = x s: s + y (1 - s) 2 u'.
template <class D, class V>
HWY_ATTR inline V gelu_slope(D d, V x, V gate, V y) {
  using T = hn::TFromD<D>;
  const V inner = hn::MulAdd(hn::Mul(x, x), hn::Set(d, static_cast<T>(3.0 * kTwiceRoot * kCube)),
                             hn::Set(d, static_cast<T>(kTwiceRoot)));
  return hn::MulAdd(hn::Mul(y, hn::Sub(hn::Set(d, T{1}), gate)), inner, gate);
}

/// cap tanh(x / cap), Gemma 2's soft cap.
template <class D, class V>
HWY_ATTR inline V soft_cap(D d, V x, hn::TFromD<D> cap) {
  return hn::Mul(hn::Tanh(d, hn::Div(x, hn::Set(d, cap))), hn::Set(d, cap));
}

/// Its slope where it gave y.
template <class D, class V>
HWY_ATTR inline V soft_cap_slope(D d, V y, hn::TFromD<D> cap) {
  const V part = hn::Div(y, hn::Set(d, cap));
  return hn::NegMulAdd(part, part, hn::Set(d, hn::TFromD<D>{1}));
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
