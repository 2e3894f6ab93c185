#include "strait/kernel/norm.h"

#include <cmath>

#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/kernel/norm.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

/// RMSNorm has no mean; what is subtracted is 0 then.
template <class W>
inline W mean_of(const W* mean, int64_t row) {
  return mean ? mean[row] : W{0};
}

template <class T>
HWY_ATTR void normalize_row(const LayerNormCall<T>& call, int64_t row) {
  const hn::ScalableTag<Wide<T>> d;
  constexpr int64_t lanes = lanes_of(d);
  const T* x = call.x + row * call.columns;
  T* out = call.out + row * call.columns;
  const T* added = call.base ? call.base + row * call.columns : call.bias;
  const auto mean = hn::Set(d, mean_of(call.mean, row)), rstd = hn::Set(d, call.rstd[row]);
  const auto from = hn::Set(d, call.from);
  for (int64_t c = 0; c < call.columns; c += lanes) {
    const int64_t left = call.columns - c;
    const auto scaled = hn::Mul(hn::Sub(load_part(d, x + c, left), mean), rstd);
    const auto weight = hn::Add(load_part(d, call.weight + c, left), from);
    const auto bias = added ? load_part(d, added + c, left) : hn::Zero(d);
    store_part(d, hn::MulAdd(scaled, weight, bias), out + c, left);
  }
}

template <class T>
HWY_ATTR void row_statistics(const LayerNormCall<T>& call, int64_t row) {
  const hn::ScalableTag<Wide<T>> d;
  constexpr int64_t lanes = lanes_of(d);
  const T* x = call.x + row * call.columns;
  if (call.mean) {
    auto sum = hn::Zero(d);
    for (int64_t c = 0; c < call.columns; c += lanes) {
      sum = hn::Add(sum, load_part(d, x + c, call.columns - c));
    }
    call.mean[row] = sum_of(d, sum) / static_cast<Wide<T>>(call.columns);
  }
  const auto center = hn::Set(d, mean_of(call.mean, row));
  auto squares = hn::Zero(d);
  for (int64_t c = 0; c < call.columns; c += lanes) {
    const int64_t left = call.columns - c;
    const auto difference =
        keep_first(d, hn::Sub(load_part(d, x + c, left), center), left, Wide<T>{0});
    squares = hn::MulAdd(difference, difference, squares);
  }
  const Wide<T> variance = sum_of(d, squares) / static_cast<Wide<T>>(call.columns);
  call.rstd[row] = Wide<T>{1} / std::sqrt(variance + static_cast<Wide<T>>(call.epsilon));
}

template <class T>
HWY_ATTR void layer_norm_any(const LayerNormCall<T>& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    row_statistics(call, row);
    normalize_row(call, row);
  }
}
STRAIT_KERNEL_TARGET(layer_norm, LayerNormCall)

template <class T>
HWY_ATTR void layer_norm_again_any(const LayerNormCall<T>& call) {
  for (int64_t row = 0; row < call.rows; ++row) normalize_row(call, row);
}
STRAIT_KERNEL_TARGET(layer_norm_again, LayerNormCall)

// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = gradient * (from + weight); RMSNorm without
// mean(g).
template <class T>
HWY_ATTR void layer_norm_backward_any(const LayerNormBackwardCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  constexpr int64_t lanes = lanes_of(d);
  const auto from = hn::Set(d, call.from);
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* x = call.x + row * call.columns;
    const T* gradient = call.gradient + row * call.columns;
    const T* residual = call.residual ? call.residual + row * call.columns : nullptr;
    T* out = call.out + row * call.columns;
    const auto mean = hn::Set(d, mean_of(call.mean, row)), rstd = hn::Set(d, call.rstd[row]);
    auto sum = hn::Zero(d), product = hn::Zero(d);
    for (int64_t c = 0; c < call.columns; c += lanes) {
      const int64_t left = call.columns - c;
      const auto hat = hn::Mul(hn::Sub(load_part(d, x + c, left), mean), rstd);
      const auto g = hn::Mul(load_part(d, gradient + c, left),
                             hn::Add(load_part(d, call.weight + c, left), from));
      sum = hn::Add(sum, g);
      product = hn::MulAdd(g, hat, product);
    }
    const auto average =
        call.mean ? hn::Set(d, sum_of(d, sum) / static_cast<Wide<T>>(call.columns)) : hn::Zero(d);
    const auto slope = hn::Set(d, sum_of(d, product) / static_cast<Wide<T>>(call.columns));
    for (int64_t c = 0; c < call.columns; c += lanes) {
      const int64_t left = call.columns - c;
      const auto hat = hn::Mul(hn::Sub(load_part(d, x + c, left), mean), rstd);
      const auto g = hn::Mul(load_part(d, gradient + c, left),
                             hn::Add(load_part(d, call.weight + c, left), from));
      const auto inner = hn::NegMulAdd(hat, slope, hn::Sub(g, average));
      const auto base = residual ? load_part(d, residual + c, left) : hn::Zero(d);
      store_part(d, hn::MulAdd(inner, rstd, base), out + c, left);
    }
  }
}
STRAIT_KERNEL_TARGET(layer_norm_backward, LayerNormBackwardCall)

/// One vector of columns.
template <class T>
HWY_ATTR void parameter_column(const LayerNormParametersCall<T>& call, int64_t c, int64_t left) {
  const hn::ScalableTag<Wide<T>> d;
  auto weight = hn::Zero(d), bias = hn::Zero(d);
  for (int64_t row = 0; row < call.rows; ++row) {
    const auto x = load_part(d, call.x + row * call.columns + c, left);
    const auto g = load_part(d, call.gradient + row * call.columns + c, left);
    const auto hat =
        hn::Mul(hn::Sub(x, hn::Set(d, mean_of(call.mean, row))), hn::Set(d, call.rstd[row]));
    weight = hn::MulAdd(g, hat, weight);
    bias = hn::Add(bias, g);
  }
  if (call.accumulate) weight = hn::Add(weight, load_part(d, call.weight_gradient + c, left));
  store_part(d, weight, call.weight_gradient + c, left);
  if (!call.bias_gradient) return;
  if (call.accumulate) bias = hn::Add(bias, load_part(d, call.bias_gradient + c, left));
  store_part(d, bias, call.bias_gradient + c, left);
}

template <class T>
HWY_ATTR void layer_norm_parameters_any(const LayerNormParametersCall<T>& call) {
  constexpr int64_t lanes = lanes_of(hn::ScalableTag<Wide<T>>());
  for (int64_t c = call.column_begin; c < call.column_end; c += lanes) {
    parameter_column(call, c, std::min(lanes, call.column_end - c));
  }
}
STRAIT_KERNEL_TARGET(layer_norm_parameters, LayerNormParametersCall)

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::kernel {

STRAIT_KERNEL_DISPATCH(layer_norm, LayerNormCall)
STRAIT_KERNEL_DISPATCH(layer_norm_again, LayerNormCall)
STRAIT_KERNEL_DISPATCH(layer_norm_backward, LayerNormBackwardCall)
STRAIT_KERNEL_DISPATCH(layer_norm_parameters, LayerNormParametersCall)

}  // namespace strait::kernel
#endif
