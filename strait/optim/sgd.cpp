// The kernel is compiled once per instruction set by Highway; the best one is chosen when it is
// called.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/optim/sgd.cpp"
#include "strait/optim/sgd.h"

#include <cstring>

#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "strait/base/errors.h"
#include "strait/kernel/vector-inl.h"
#include "strait/optim/split.h"

#ifndef STRAIT_OPTIM_SGD_TYPES
#define STRAIT_OPTIM_SGD_TYPES
namespace strait::optim {

template <class T>
struct SgdCoefficients {
  T decay, gradient_scale, momentum, learning_rate;
};

/// `momentum` is null when there is none.
template <class T>
struct SgdPointers {
  T* weights;
  const T* gradients;
  T* momentum;
  Bfloat16* rounded;  // or null
  SgdPointers at(size_t i) const {
    return {weights + i, gradients + i, momentum ? momentum + i : nullptr,
            rounded ? rounded + i : nullptr};
  }
};

}  // namespace strait::optim
#endif

HWY_BEFORE_NAMESPACE();
namespace strait::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class T = hn::TFromD<D>>
HWY_INLINE void update_vector(D d, const SgdPointers<T>& p, const SgdCoefficients<T>& c) {
  auto direction = hn::Mul(hn::LoadU(d, p.gradients), hn::Set(d, c.gradient_scale));
  if (p.momentum != nullptr) {
    direction = hn::MulAdd(hn::Set(d, c.momentum), hn::LoadU(d, p.momentum), direction);
    hn::StoreU(direction, d, p.momentum);
  }
  const auto decayed = hn::Mul(hn::LoadU(d, p.weights), hn::Set(d, c.decay));
  const auto updated = hn::NegMulAdd(hn::Set(d, c.learning_rate), direction, decayed);
  hn::StoreU(updated, d, p.weights);
  if constexpr (sizeof(T) == 4) {
    if (p.rounded)
      kernel::HWY_NAMESPACE::store_narrow(d, updated, reinterpret_cast<uint16_t*>(p.rounded));
  }
}

template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void update_tail(D d, const SgdPointers<T>& p, const SgdCoefficients<T>& c,
                              size_t count) {
  HWY_ALIGN T weights[HWY_MAX_BYTES / sizeof(T)] = {}, gradients[HWY_MAX_BYTES / sizeof(T)] = {},
                                      momentum[HWY_MAX_BYTES / sizeof(T)] = {};
  std::memcpy(weights, p.weights, count * sizeof(T));
  std::memcpy(gradients, p.gradients, count * sizeof(T));
  if (p.momentum != nullptr) std::memcpy(momentum, p.momentum, count * sizeof(T));
  Bfloat16 rounded[HWY_MAX_BYTES / sizeof(T)];
  update_vector(
      d, SgdPointers<T>{weights, gradients, p.momentum != nullptr ? momentum : nullptr, rounded},
      c);
  std::memcpy(p.weights, weights, count * sizeof(T));
  if (p.rounded) std::memcpy(p.rounded, rounded, count * sizeof(Bfloat16));
  if (p.momentum != nullptr) std::memcpy(p.momentum, momentum, count * sizeof(T));
}

template <class T>
HWY_INLINE void update_range(const SgdPointers<T>& p, const SgdCoefficients<T>& c, size_t count) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) update_vector(d, p.at(i), c);
  if (i < count) update_tail(d, p.at(i), c, count - i);
}

void update_floats(const SgdPointers<float>& p, const SgdCoefficients<float>& c, size_t count) {
  update_range(p, c, count);
}
void update_doubles(const SgdPointers<double>& p, const SgdCoefficients<double>& c, size_t count) {
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

template <class T, class Kernel>
void run(const SgdBuffers<T>& buffers, const SgdUpdate& update, int threads, Kernel kernel) {
  const size_t elements = buffers.weights.size();
  const bool has_momentum = update.momentum != 0.0;
  ensure(buffers.gradients.size() == elements &&
             (!has_momentum || buffers.momentum.size() == elements),
         "sgd_update: weights, gradients and momentum differ in length");
  ensure(buffers.rounded.empty() || buffers.rounded.size() == (sizeof(T) == 4 ? elements : 0),
         "sgd_update: rounded weights need as many fp32 weights");
  const SgdCoefficients<T> c{static_cast<T>(1.0 - update.learning_rate * update.weight_decay),
                             static_cast<T>(update.gradient_scale), static_cast<T>(update.momentum),
                             static_cast<T>(update.learning_rate)};
  const SgdPointers<T> whole{buffers.weights.data(), buffers.gradients.data(),
                             has_momentum ? buffers.momentum.data() : nullptr,
                             buffers.rounded.empty() ? nullptr : buffers.rounded.data()};
  for_each_chunk(static_cast<int64_t>(elements), kUpdateChunkElements, threads,
                 [&](int64_t begin, int64_t end) {
                   kernel(whole.at(static_cast<size_t>(begin)), c,
                          static_cast<size_t>(end - begin));
                 });
}

}  // namespace

void sgd_update(const SgdBuffers<float>& buffers, const SgdUpdate& update, int threads) {
  run(buffers, update, threads, HWY_DYNAMIC_DISPATCH(update_floats));
}

void sgd_update(const SgdBuffers<double>& buffers, const SgdUpdate& update, int threads) {
  run(buffers, update, threads, HWY_DYNAMIC_DISPATCH(update_doubles));
}

}  // namespace strait::optim
#endif
