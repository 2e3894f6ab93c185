// Cross-entropy of one row of logits, with its gradient in place. With a cap > 0 the softmax is
// that of cap tanh(logit / cap) (Gemma 2), and gradients are those of the logits as they are given.
#pragma once

#include <cstdint>

#include "strait/base/bfloat16.h"

namespace strait::kernel {

template <class T>
struct CrossEntropyCall {
  int64_t vocabulary = 0;
  /// [vocabulary]. When asked for, the gradient takes its place: elements of T from the same
  /// address on.
  Wide<T>* logits = nullptr;
  int32_t target = -1;  // -1: not counted, loss and gradient are 0
  bool gradient = false;
  double scale = 1.0;      // gradient = scale (softmax - one_hot(target))
  double* loss = nullptr;  // log(sum exp logits) - logits[target]
  double cap = 0.0;
};
template <class T>
void cross_entropy(const CrossEntropyCall<T>& call);

/// What the ranks that share a vocabulary make of their part of a row of logits.
template <class T>
struct LossPartCall {
  int64_t vocabulary = 0;
  const Wide<T>* logits = nullptr;  // [vocabulary]
  int64_t target = -1;              // among these; -1: another rank's, or not counted
  double* part = nullptr;           // maximum, sum exp(logit - maximum), logit of the target or 0
  double cap = 0.0;                 // all three are of capped logits
};
template <class T>
void loss_part(const LossPartCall<T>& call);

/// The gradient of the loss in place of the logits, elements of T from the same address on: scale
/// (exp(logit - maximum) / sum - one_hot(target)). Zeros unless `counted`.
template <class T>
struct LossSlopeCall {
  int64_t vocabulary = 0;
  Wide<T>* logits = nullptr;
  int64_t target = -1;
  bool counted = false;
  double maximum = 0.0, sum = 1.0;  // of the whole row, as loss_part has them
  double scale = 1.0;
  double cap = 0.0;
};
template <class T>
void loss_slope(const LossSlopeCall<T>& call);

/// logits = cap tanh(logits / cap), in place; cap > 0. Logits that are drawn from or shown.
template <class T>
struct CapLogitsCall {
  int64_t count = 0;
  Wide<T>* logits = nullptr;
  double cap = 0.0;
};
template <class T>
void cap_logits(const CapLogitsCall<T>& call);

}  // namespace strait::kernel
