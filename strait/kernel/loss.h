// Cross-entropy of one row of logits, with its gradient in place.
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
};
template <class T>
void cross_entropy(const CrossEntropyCall<T>& call);

}  // namespace strait::kernel
