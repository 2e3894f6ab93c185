// Rotary position embedding (Su et al. 2021) on rows of heads, pairs (i, i + head_width / 2).
// Single-threaded on what is given.
#pragma once

#include <cstdint>

#include "strait/base/bfloat16.h"

namespace strait::kernel {

/// x of each head <- the pairs turned by the angles whose cosines and sines are given, or back
/// again.
template <class T>
struct RotateCall {
  int64_t heads = 0, head_width = 0;  // head_width even
  const Wide<T>* cosines = nullptr;   // [head_width / 2] of the row's position
  const Wide<T>* sines = nullptr;     // likewise
  bool back = false;                  // the inverse, which is also the gradient
  T* x = nullptr;                     // [heads, head_width], in place
};
template <class T>
void rotate(const RotateCall<T>& call);

}  // namespace strait::kernel
