// Cross-entropy of one row of logits, with its gradient in place.
#pragma once

#include <cstdint>

namespace strait::kernel {

template <class T>
struct CrossEntropyCall {
  int64_t vocabulary = 0;
  T* logits = nullptr;  // [vocabulary]; becomes the gradient when asked for
  int32_t target = -1;  // -1: not counted, loss and gradient are 0
  bool gradient = false;
  double scale = 1.0;      // gradient = scale (softmax - one_hot(target))
  double* loss = nullptr;  // log(sum exp logits) - logits[target]
};
template <class T>
void cross_entropy(const CrossEntropyCall<T>& call);

}  // namespace strait::kernel
