#include "strait/kernel/elementwise.h"

#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/kernel/elementwise.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "strait/kernel/activation-inl.h"
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

template <class T>
HWY_ATTR void gelu_any(const GeluCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  for (int64_t i = 0; i < call.count; i += lanes_of(d)) {
    const int64_t left = call.count - i;
    const auto x = load_part(d, call.x + i, left);
    store_part(d, hn::Mul(x, gelu_gate(d, x)), call.out + i, left);
  }
}
STRAIT_KERNEL_TARGET(gelu, GeluCall)

template <class T>
HWY_ATTR void gelu_backward_any(const GeluBackwardCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  for (int64_t i = 0; i < call.count; i += lanes_of(d)) {
    const int64_t left = call.count - i;
    const auto x = load_part(d, call.x + i, left);
    const auto gate = gelu_gate(d, x);
    const auto out = hn::Mul(x, gate);
    const auto slope = gelu_slope(d, x, gate, out);
    store_part(d, hn::Mul(load_part(d, call.gradient + i, left), slope), call.gradient + i, left);
    store_part(d, out, call.out + i, left);
  }
}
STRAIT_KERNEL_TARGET(gelu_backward, GeluBackwardCall)

template <class T>
HWY_ATTR void add_bias_any(const AddBiasCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t c = 0; c < call.columns; c += lanes_of(d)) {
      const int64_t left = call.columns - c;
      auto value = load_part(d, call.x + row * call.columns + c, left);
      if (call.bias) value = hn::Add(value, load_part(d, call.bias + c, left));
      store_part(d, value, call.out + row * call.columns + c, left);
    }
  }
}
STRAIT_KERNEL_TARGET(add_bias, AddBiasCall)

template <class T>
HWY_ATTR void add_sum_any(const AddSumCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t begin = row * call.columns;
    for (int64_t c = 0; c < call.columns; c += lanes_of(d)) {
      const int64_t left = call.columns - c;
      auto value = load_part(d, call.sum + begin + c, left);
      if (call.bias) value = hn::Add(load_part(d, call.bias + c, left), value);
      if (call.base) value = hn::Add(load_part(d, call.base + begin + c, left), value);
      store_part(d, value, call.out + begin + c, left);
    }
  }
}
STRAIT_KERNEL_TARGET(add_sum, AddSumCall)

template <class T>
HWY_ATTR void column_sums_any(const ColumnSumsCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  constexpr int64_t lanes = lanes_of(d);
  for (int64_t c = call.column_begin; c < call.column_end; c += lanes) {
    const int64_t left = std::min(lanes, call.column_end - c);
    auto sum = hn::Zero(d);
    for (int64_t row = 0; row < call.rows; ++row) {
      sum = hn::Add(sum, load_part(d, call.x + row * call.columns + c, left));
    }
    if (call.accumulate) sum = hn::Add(sum, load_part(d, call.out + c, left));
    store_part(d, sum, call.out + c, left);
  }
}
STRAIT_KERNEL_TARGET(column_sums, ColumnSumsCall)

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::kernel {

STRAIT_KERNEL_DISPATCH(gelu, GeluCall)
STRAIT_KERNEL_DISPATCH(gelu_backward, GeluBackwardCall)
STRAIT_KERNEL_DISPATCH(add_bias, AddBiasCall)
STRAIT_KERNEL_DISPATCH(add_sum, AddSumCall)
STRAIT_KERNEL_DISPATCH(column_sums, ColumnSumsCall)

}  // namespace strait::kernel
#endif
