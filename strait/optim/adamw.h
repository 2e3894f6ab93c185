// AdamW in one pass over memory.
#pragma once

#include <cstdint>
#include <span>

#include "strait/base/bfloat16.h"

namespace strait::optim {

/// The buffers of one update, all of the same length. Weights and moments change in place; the
/// gradient is only read. No two may overlap.
template <class T>
struct AdamWBuffers {
  std::span<T> weights;
  std::span<const T> gradients;
  std::span<T> first_moments;
  std::span<T> second_moments;
  std::span<Bfloat16> rounded = {};  // the new weights rounded to bf16, or empty: not wanted
};

/// One update of one section: parameters that do not decay are a call of their own with
/// weight_decay 0.
struct AdamWUpdate {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;  // multiplies the gradient first: clip factor, 1 / accumulation
  int64_t step = 1;             // 1-based count of updates, this one included: bias correction
};

/// One update, as torch.optim.AdamW defines it (Loshchilov and Hutter, arXiv 1711.05101, algorithm
/// 2, with the learning rate inside the decay):
///   g = gradient_scale * gradient
///   w = w * (1 - learning_rate * weight_decay)
///   m = beta1 * m + (1 - beta1) * g
///   v = beta2 * v + (1 - beta2) * g^2
///   w = w - learning_rate / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
/// Coefficients are made in double and rounded to T once.
///
/// Blocking. Uses at most `threads` threads (threads/team.h), at least one. The result of an
/// element depends on that element alone: neither on the split over threads, nor on its place in
/// the span, nor on the vector width (AVX2, AVX-512 and NEON give the same bits). Errors:
/// InternalError on unequal lengths or step < 1. Cost per element: 4 reads and 3 writes of T, and a
/// write of bf16 where it is wanted.
void adamw_update(const AdamWBuffers<float>& buffers, const AdamWUpdate& update, int threads);
void adamw_update(const AdamWBuffers<double>& buffers, const AdamWUpdate& update, int threads);

}  // namespace strait::optim
