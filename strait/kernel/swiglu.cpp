#include "strait/kernel/swiglu.h"

#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/kernel/swiglu.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "strait/kernel/activation-inl.h"
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

/// y = g s(g) and its slope.
template <class V>
struct Gated {
  V value, slope;
};

/// dy/dg = s + g s (1 - s).
struct Silu {
  template <class D, class V>
  HWY_ATTR static V value(D d, V gate) {
    return hn::Mul(gate, sigmoid(d, gate));
  }
  template <class D, class V>
  HWY_ATTR static Gated<V> with_slope(D d, V gate) {
    const V s = sigmoid(d, gate), silu = hn::Mul(gate, s);
    return {silu, hn::MulAdd(silu, hn::Sub(hn::Set(d, hn::TFromD<D>{1}), s), s)};
  }
};

struct Gelu {
  template <class D, class V>
  HWY_ATTR static V value(D d, V gate) {
    return hn::Mul(gate, gelu_gate(d, gate));
  }
  template <class D, class V>
  HWY_ATTR static Gated<V> with_slope(D d, V gate) {
    const V s = gelu_gate(d, gate), gelu = hn::Mul(gate, s);
    return {gelu, gelu_slope(d, gate, s, gelu)};
  }
};

template <class Function, class T>
HWY_ATTR void gated_rows(const SwigluCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* gates = call.x + row * 2 * call.columns;
    const T* ups = gates + call.columns;
    T* out = call.out + row * call.out_stride;
    for (int64_t c = 0; c < call.columns; c += lanes_of(d)) {
      const int64_t left = call.columns - c;
      const auto value = Function::value(d, load_part(d, gates + c, left));
      store_part(d, hn::Mul(value, load_part(d, ups + c, left)), out + c, left);
    }
  }
}

template <class T>
HWY_ATTR void swiglu_any(const SwigluCall<T>& call) {
  if (call.gate == Gate::kGelu) return gated_rows<Gelu>(call);
  gated_rows<Silu>(call);
}
STRAIT_KERNEL_TARGET(swiglu, SwigluCall)

// The gradients of y u: that of up is y, that of the gate u y'.
template <class Function, class T>
HWY_ATTR void gated_gradients(const SwigluBackwardCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t wide = row * 2 * call.columns;
    T* out = call.out + row * call.columns;
    for (int64_t c = 0; c < call.columns; c += lanes_of(d)) {
      const int64_t left = call.columns - c;
      const auto gate = load_part(d, call.x + wide + c, left);
      const auto up = load_part(d, call.x + wide + call.columns + c, left);
      const auto gradient = load_part(d, out + c, left);
      const auto y = Function::with_slope(d, gate);
      store_part(d, hn::Mul(y.value, up), out + c, left);
      store_part(d, hn::Mul(hn::Mul(gradient, up), y.slope), call.gradient + wide + c, left);
      store_part(d, hn::Mul(gradient, y.value), call.gradient + wide + call.columns + c, left);
    }
  }
}

template <class T>
HWY_ATTR void swiglu_backward_any(const SwigluBackwardCall<T>& call) {
  if (call.gate == Gate::kGelu) return gated_gradients<Gelu>(call);
  gated_gradients<Silu>(call);
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
