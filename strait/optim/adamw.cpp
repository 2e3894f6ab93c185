// The kernel is compiled once per instruction set by Highway; the best one is chosen when it is
// called.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/optim/adamw.cpp"
#include "strait/optim/adamw.h"

#include <cmath>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "strait/base/errors.h"
#include "strait/kernel/vector-inl.h"
#include "strait/optim/split.h"

#ifndef STRAIT_OPTIM_ADAMW_TYPES
#define STRAIT_OPTIM_ADAMW_TYPES
namespace strait::optim {

/// Coefficients of one update in the element type.
template <class T>
struct AdamWCoefficients {
  T decay, gradient_scale, beta1, beta2, one_minus_beta1, one_minus_beta2, step_size,
      root_correction, eps;
};

template <class T>
struct AdamWPointers {
  T* weights;
  const T* gradients;
  T* first;
  T* second;
  Bfloat16* rounded;  // or null
  AdamWPointers at(size_t i) const {
    return {weights + i, gradients + i, first + i, second + i, rounded ? rounded + i : nullptr};
  }
};

}  // namespace strait::optim
#endif

HWY_BEFORE_NAMESPACE();
namespace strait::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Elements by which loads are announced to the memory: four streams at once fill no queue alone.
constexpr size_t kAhead = 256;

/// Announces what lies a kilobyte ahead, also past the end, where it does nothing.
template <class T>
HWY_INLINE void fetch_ahead(const AdamWPointers<T>& p) {
  hwy::Prefetch(p.weights + kAhead);
  hwy::Prefetch(p.gradients + kAhead);
  hwy::Prefetch(p.first + kAhead);
  hwy::Prefetch(p.second + kAhead);
}

/// Updates one vector at p[0 .. Lanes). Multiply-adds are explicit, so that every width rounds
/// alike.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void update_vector(D d, const AdamWPointers<T>& p, const AdamWCoefficients<T>& c) {
  const auto gradient = hn::Mul(hn::LoadU(d, p.gradients), hn::Set(d, c.gradient_scale));
  const auto first = hn::MulAdd(hn::Set(d, c.beta1), hn::LoadU(d, p.first),
                                hn::Mul(hn::Set(d, c.one_minus_beta1), gradient));
  const auto scaled_square = hn::Mul(hn::Mul(hn::Set(d, c.one_minus_beta2), gradient), gradient);
  const auto second = hn::MulAdd(hn::Set(d, c.beta2), hn::LoadU(d, p.second), scaled_square);
  const auto root = hn::Sqrt(second);
  const auto denominator = hn::Add(hn::Div(root, hn::Set(d, c.root_correction)), hn::Set(d, c.eps));
  const auto decayed = hn::Mul(hn::LoadU(d, p.weights), hn::Set(d, c.decay));
  const auto direction = hn::Div(first, denominator);
  hn::StoreU(first, d, p.first);
  hn::StoreU(second, d, p.second);
  const auto updated = hn::NegMulAdd(hn::Set(d, c.step_size), direction, decayed);
  hn::StoreU(updated, d, p.weights);
  if constexpr (sizeof(T) == 4) {
    if (p.rounded)
      kernel::HWY_NAMESPACE::store_narrow(d, updated, reinterpret_cast<uint16_t*>(p.rounded));
  }
}

/// The last elements, fewer than a vector: through buffers of a whole one.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void update_tail(D d, const AdamWPointers<T>& p, const AdamWCoefficients<T>& c,
                              size_t count) {
  HWY_ALIGN T weights[HWY_MAX_BYTES / sizeof(T)] = {}, gradients[HWY_MAX_BYTES / sizeof(T)] = {},
                                      first[HWY_MAX_BYTES / sizeof(T)] = {},
                                      second[HWY_MAX_BYTES / sizeof(T)] = {};
  std::memcpy(weights, p.weights, count * sizeof(T));
  std::memcpy(gradients, p.gradients, count * sizeof(T));
  std::memcpy(first, p.first, count * sizeof(T));
  std::memcpy(second, p.second, count * sizeof(T));
  Bfloat16 rounded[HWY_MAX_BYTES / sizeof(T)];
  update_vector(d, AdamWPointers<T>{weights, gradients, first, second, rounded}, c);
  std::memcpy(p.weights, weights, count * sizeof(T));
  std::memcpy(p.first, first, count * sizeof(T));
  std::memcpy(p.second, second, count * sizeof(T));
  if (p.rounded) std::memcpy(p.rounded, rounded, count * sizeof(Bfloat16));
}

template <class T>
HWY_INLINE void update_range(const AdamWPointers<T>& p, const AdamWCoefficients<T>& c,
                             size_t count) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    fetch_ahead(p.at(i));
    update_vector(d, p.at(i), c);
  }
  if (i < count) update_tail(d, p.at(i), c, count - i);
}

void update_floats(const AdamWPointers<float>& p, const AdamWCoefficients<float>& c, size_t count) {
  update_range(p, c, count);
}
void update_doubles(const AdamWPointers<double>& p, const AdamWCoefficients<double>& c,
                    size_t count) {
  update_range(p, c, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace strait::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::optim {
HWY_EXPORT(update_floats);
HWY_EXPORT(update_doubles);

namespace {

template <class T>
AdamWCoefficients<T> coefficients(const AdamWUpdate& update) {
  const double steps = static_cast<double>(update.step);
  const double correction1 = 1.0 - std::pow(update.beta1, steps);
  const double correction2 = 1.0 - std::pow(update.beta2, steps);
  AdamWCoefficients<T> c;
  c.decay = static_cast<T>(1.0 - update.learning_rate * update.weight_decay);
  c.gradient_scale = static_cast<T>(update.gradient_scale);
  c.beta1 = static_cast<T>(update.beta1);
  c.beta2 = static_cast<T>(update.beta2);
  c.one_minus_beta1 = static_cast<T>(1.0 - update.beta1);
  c.one_minus_beta2 = static_cast<T>(1.0 - update.beta2);
  c.step_size = static_cast<T>(update.learning_rate / correction1);
  c.root_correction = static_cast<T>(std::sqrt(correction2));
  c.eps = static_cast<T>(update.eps);
  return c;
}

template <class T, class Kernel>
void run(const AdamWBuffers<T>& buffers, const AdamWUpdate& update, int threads, Kernel kernel) {
  const size_t elements = buffers.weights.size();
  ensure(buffers.gradients.size() == elements && buffers.first_moments.size() == elements &&
             buffers.second_moments.size() == elements,
         "adamw_update: weights, gradients and moments differ in length");
  const size_t wanted = sizeof(T) == 4 ? elements : 0;
  ensure(buffers.rounded.empty() || buffers.rounded.size() == wanted,
         "adamw_update: rounded weights need as many fp32 weights");
  ensure(update.step >= 1, "adamw_update: step counts from 1");
  const AdamWCoefficients<T> c = coefficients<T>(update);
  const AdamWPointers<T> whole{buffers.weights.data(), buffers.gradients.data(),
                               buffers.first_moments.data(), buffers.second_moments.data(),
                               buffers.rounded.empty() ? nullptr : buffers.rounded.data()};
  for_each_chunk(static_cast<int64_t>(elements), kUpdateChunkElements, threads,
                 [&](int64_t begin, int64_t end) {
                   kernel(whole.at(static_cast<size_t>(begin)), c,
                          static_cast<size_t>(end - begin));
                 });
}

}  // namespace

void adamw_update(const AdamWBuffers<float>& buffers, const AdamWUpdate& update, int threads) {
  run(buffers, update, threads, HWY_DYNAMIC_DISPATCH(update_floats));
}

void adamw_update(const AdamWBuffers<double>& buffers, const AdamWUpdate& update, int threads) {
  run(buffers, update, threads, HWY_DYNAMIC_DISPATCH(update_doubles));
}

}  // namespace strait::optim
#endif
