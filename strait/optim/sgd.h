// Stochastic gradient descent with momentum, in one pass over memory.
#pragma once

#include <cstdint>
#include <span>

#include "strait/base/bfloat16.h"

namespace strait::optim {

/// The buffers of one update, all of the same length; `momentum` may be empty when the factor is 0.
template <class T>
struct SgdBuffers {
  std::span<T> weights;
  std::span<const T> gradients;
  std::span<T> momentum;
  std::span<Bfloat16> rounded = {};  // as AdamWBuffers::rounded
};

struct SgdUpdate {
  double learning_rate = 1e-3;
  double momentum = 0.9;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
};

/// One update:
///   g = gradient_scale * gradient
///   w = w * (1 - learning_rate * weight_decay)
///   b = momentum * b + g
///   w = w - learning_rate * b
/// That is torch.optim.SGD without dampening or Nesterov, except that the weight decay is
/// decoupled: it shrinks the weights and never enters the momentum (SGDW, Loshchilov and Hutter,
/// arXiv 1711.05101, algorithm 1, with the learning rate inside the decay, as in AdamW). A momentum
/// buffer of zeros gives the first step of torch.
///
/// Threads, determinism and errors as adamw_update. Cost per element: 3 reads and 2 writes of T,
/// and a write of bf16 where it is wanted.
void sgd_update(const SgdBuffers<float>& buffers, const SgdUpdate& update, int threads);
void sgd_update(const SgdBuffers<double>& buffers, const SgdUpdate& update, int threads);

}  // namespace strait::optim
