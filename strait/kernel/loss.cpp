#include "strait/kernel/loss.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/kernel/loss.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "strait/kernel/activation-inl.h"
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

template <class T>
HWY_ATTR T row_maximum(const T* logits, int64_t count) {
  const hn::ScalableTag<T> d;
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  auto highest = hn::Set(d, kLowest);
  for (int64_t i = 0; i < count; i += lanes_of(d)) {
    highest =
        hn::Max(highest, keep_first(d, load_part(d, logits + i, count - i), count - i, kLowest));
  }
  return hn::GetLane(hn::MaxOfLanes(d, highest));
}

/// Sum of exp(logits - maximum); with `keep` the exponentials replace the logits. Two alternating
/// accumulators shorten the chains of rounded additions.
template <class T>
HWY_ATTR T exponential_sum(T* logits, int64_t count, T maximum, bool keep) {
  const hn::ScalableTag<T> d;
  constexpr int64_t lanes = lanes_of(d);
  const auto shift = hn::Set(d, maximum);
  auto even = hn::Zero(d), odd = hn::Zero(d);
  for (int64_t i = 0; i < count; i += lanes) {
    const int64_t left = count - i;
    const auto shifted = hn::Sub(load_part(d, logits + i, left), shift);
    const auto value = keep_first(d, hn::Exp(d, shifted), left, T{0});
    if (keep) store_part(d, value, logits + i, left);
    const auto sum = hn::Add(even, value);
    even = odd;
    odd = sum;
  }
  return sum_of(d, hn::Add(even, odd));
}

/// As exponential_sum, of capped logits, which stay as they are.
template <class T>
HWY_ATTR T capped_sum(const T* logits, int64_t count, T maximum, T cap) {
  const hn::ScalableTag<T> d;
  const auto shift = hn::Set(d, maximum);
  auto even = hn::Zero(d), odd = hn::Zero(d);
  for (int64_t i = 0; i < count; i += lanes_of(d)) {
    const int64_t left = count - i;
    const auto value = hn::Exp(d, hn::Sub(soft_cap(d, load_part(d, logits + i, left), cap), shift));
    const auto sum = hn::Add(even, keep_first(d, value, left, T{0}));
    even = odd;
    odd = sum;
  }
  return sum_of(d, hn::Add(even, odd));
}

template <class T>
HWY_ATTR void loss_part_any(const LossPartCall<T>& call) {
  using W = Wide<T>;
  W maximum = row_maximum(call.logits, call.vocabulary);
  W chosen = call.target < 0 ? W{0} : call.logits[call.target];
  W sum = 0;
  if (call.cap > 0.0) {
    const hn::ScalableTag<W> d;
    const W cap = static_cast<W>(call.cap);
    maximum = hn::GetLane(soft_cap(d, hn::Set(d, maximum), cap));  // it grows with the logit
    chosen = hn::GetLane(soft_cap(d, hn::Set(d, chosen), cap));    // 0 stays 0
    sum = capped_sum(call.logits, call.vocabulary, maximum, cap);
  } else {
    sum = exponential_sum(const_cast<W*>(call.logits), call.vocabulary, maximum, false);
  }
  call.part[0] = static_cast<double>(maximum);
  call.part[1] = static_cast<double>(sum);
  call.part[2] = static_cast<double>(chosen);
}
STRAIT_KERNEL_TARGET(loss_part, LossPartCall)

/// loss_slope of a row that is counted, with a cap.
template <class T>
HWY_ATTR void capped_slope(const LossSlopeCall<T>& call) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  T* gradient = reinterpret_cast<T*>(call.logits);
  const W cap = static_cast<W>(call.cap);
  const auto shift = hn::Set(d, static_cast<W>(call.maximum));
  const auto factor = hn::Set(d, static_cast<W>(call.scale / call.sum));
  const auto slope_of = [&](auto logits, auto subtracted) HWY_ATTR {
    const auto capped = soft_cap(d, logits, cap);
    const auto share = hn::Mul(hn::Exp(d, hn::Sub(capped, shift)), factor);
    return hn::Mul(hn::Sub(share, subtracted), soft_cap_slope(d, capped, cap));
  };
  // Narrow elements never overtake the wide ones that are still to be read.
  W at_target = 0;
  if (call.target >= 0)
    at_target = hn::GetLane(
        slope_of(hn::Set(d, call.logits[call.target]), hn::Set(d, static_cast<W>(call.scale))));
  for (int64_t i = 0; i < call.vocabulary; i += lanes_of(d)) {
    const int64_t left = call.vocabulary - i;
    store_part(d, slope_of(load_part(d, call.logits + i, left), hn::Zero(d)), gradient + i, left);
  }
  if (call.target >= 0) gradient[call.target] = static_cast<T>(at_target);
}

template <class T>
HWY_ATTR void capped_cross_entropy(const CrossEntropyCall<T>& call) {
  double part[3];
  loss_part_any<T>({call.vocabulary, call.logits, call.target, part, call.cap});
  *call.loss = std::log(part[1]) + (part[0] - part[2]);
  if (call.gradient)
    capped_slope<T>(
        {call.vocabulary, call.logits, call.target, true, part[0], part[1], call.scale, call.cap});
}

template <class T>
HWY_ATTR void cross_entropy_any(const CrossEntropyCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  *call.loss = 0.0;
  if (call.target < 0) {
    if (call.gradient)
      std::memset(call.logits, 0, static_cast<size_t>(call.vocabulary) * sizeof(T));
    return;
  }
  if (call.cap > 0.0) return capped_cross_entropy(call);
  const Wide<T> maximum = row_maximum(call.logits, call.vocabulary);
  const Wide<T> chosen = call.logits[call.target];
  const Wide<T> sum = exponential_sum(call.logits, call.vocabulary, maximum, call.gradient);
  *call.loss = std::log(static_cast<double>(sum)) +
               (static_cast<double>(maximum) - static_cast<double>(chosen));
  if (!call.gradient) return;
  const auto factor = hn::Set(d, static_cast<Wide<T>>(call.scale / static_cast<double>(sum)));
  // Narrow elements never overtake the wide ones that are still to be read.
  T* gradient = reinterpret_cast<T*>(call.logits);
  const Wide<T> at_target = call.logits[call.target] * hn::GetLane(factor);
  for (int64_t i = 0; i < call.vocabulary; i += lanes_of(d)) {
    const int64_t left = call.vocabulary - i;
    store_part(d, hn::Mul(load_part(d, call.logits + i, left), factor), gradient + i, left);
  }
  gradient[call.target] = static_cast<T>(at_target - static_cast<Wide<T>>(call.scale));
}
STRAIT_KERNEL_TARGET(cross_entropy, CrossEntropyCall)

template <class T>
HWY_ATTR void loss_slope_any(const LossSlopeCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  T* gradient = reinterpret_cast<T*>(call.logits);
  if (!call.counted) {
    std::memset(gradient, 0, static_cast<size_t>(call.vocabulary) * sizeof(T));
    return;
  }
  if (call.cap > 0.0) return capped_slope(call);
  const auto shift = hn::Set(d, static_cast<Wide<T>>(call.maximum));
  const auto factor = hn::Set(d, static_cast<Wide<T>>(call.scale / call.sum));
  // Narrow elements never overtake the wide ones that are still to be read.
  Wide<T> at_target = 0;
  if (call.target >= 0)
    at_target = hn::GetLane(hn::Mul(
        hn::Exp(d, hn::Set(d, call.logits[call.target] - static_cast<Wide<T>>(call.maximum))),
        factor));
  for (int64_t i = 0; i < call.vocabulary; i += lanes_of(d)) {
    const int64_t left = call.vocabulary - i;
    const auto shifted = hn::Sub(load_part(d, call.logits + i, left), shift);
    store_part(d, hn::Mul(hn::Exp(d, shifted), factor), gradient + i, left);
  }
  if (call.target >= 0)
    gradient[call.target] = static_cast<T>(at_target - static_cast<Wide<T>>(call.scale));
}
STRAIT_KERNEL_TARGET(loss_slope, LossSlopeCall)

template <class T>
HWY_ATTR void cap_logits_any(const CapLogitsCall<T>& call) {
  const hn::ScalableTag<Wide<T>> d;
  const Wide<T> cap = static_cast<Wide<T>>(call.cap);
  for (int64_t i = 0; i < call.count; i += lanes_of(d)) {
    const int64_t left = call.count - i;
    store_part(d, soft_cap(d, load_part(d, call.logits + i, left), cap), call.logits + i, left);
  }
}
STRAIT_KERNEL_TARGET(cap_logits, CapLogitsCall)

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::kernel {

STRAIT_KERNEL_DISPATCH(cross_entropy, CrossEntropyCall)
STRAIT_KERNEL_DISPATCH(loss_part, LossPartCall)
STRAIT_KERNEL_DISPATCH(loss_slope, LossSlopeCall)
STRAIT_KERNEL_DISPATCH(cap_logits, CapLogitsCall)

}  // namespace strait::kernel
#endif
