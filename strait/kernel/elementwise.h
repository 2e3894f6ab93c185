// Elementwise kernels and column sums on dense memory. Single-threaded on what is given; the result
// of an element does not depend on the range that it is computed in.
#pragma once

#include <cstdint>

#include "strait/base/bfloat16.h"

namespace strait::kernel {

/// GELU in its tanh form (Hendrycks & Gimpel 2016): out = x s(x), s(x) = 1 / (1 + exp(-2 u)),
/// u = sqrt(2/pi) (x + 0.044715 x^3). out may equal x.
template <class T>
struct GeluCall {
  int64_t count = 0;
  const T* x = nullptr;
  T* out = nullptr;
};
template <class T>
void gelu(const GeluCall<T>& call);

/// gradient <- gradient * gelu'(x); out <- gelu(x), equal to gelu's bit for bit.
template <class T>
struct GeluBackwardCall {
  int64_t count = 0;
  const T* x = nullptr;
  T* gradient = nullptr;
  T* out = nullptr;
};
template <class T>
void gelu_backward(const GeluBackwardCall<T>& call);

/// out[r, c] = x[r, c] + bias[c]; bias may be null, out may equal x.
template <class T>
struct AddBiasCall {
  int64_t rows = 0, columns = 0;
  const T* x = nullptr;
  const T* bias = nullptr;
  T* out = nullptr;
};
template <class T>
void add_bias(const AddBiasCall<T>& call);

/// out[r, c] = base[r, c] + (bias[c] + sum[r, c]), rounded once: what gemm does behind its last
/// product. bias and base may be null (0), out may equal base.
template <class T>
struct AddSumCall {
  int64_t rows = 0, columns = 0;
  const Wide<T>* sum = nullptr;
  const T* bias = nullptr;
  const T* base = nullptr;
  T* out = nullptr;
};
template <class T>
void add_sum(const AddSumCall<T>& call);

/// out[c] (+)= sum over rows of x[r, c], rows in order, for columns [column_begin, column_end).
template <class T>
struct ColumnSumsCall {
  int64_t rows = 0, columns = 0, column_begin = 0, column_end = 0;
  const T* x = nullptr;
  Wide<T>* out = nullptr;
  bool accumulate = false;
};
template <class T>
void column_sums(const ColumnSumsCall<T>& call);

}  // namespace strait::kernel
