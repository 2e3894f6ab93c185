// Normal numbers addressed by element: initial values of parameters.
#pragma once

#include <cstdint>

namespace strait::kernel {

/// out[i] = deviation * z(first + i). Elements 2n and 2n + 1 are the cosine and the sine branch of
/// Box-Muller on the stream's counters 2n and 2n + 1, computed in fp64 and rounded to T, so the
/// fp32 values are the rounded fp64 ones. Cost: about 5 ns per element on AVX-512.
template <class T>
struct NormalCall {
  uint64_t key = 0;  // RandomStream::key()
  uint64_t first = 0;
  int64_t count = 0;
  double deviation = 1.0;
  T* out = nullptr;
};
template <class T>
void normal(const NormalCall<T>& call);

}  // namespace strait::kernel
