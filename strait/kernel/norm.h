// LayerNorm (Ba et al. 2016) over rows, y = (x - mean) rstd weight + bias with rstd = 1 /
// sqrt(variance + epsilon). Where `mean` is null it is RMSNorm (Zhang & Sennrich 2019): no mean,
// rstd of the mean square. With `from` = 1 the factor is 1 + weight, summed up in Wide<T> (Gemma).
// All matrices are row-major and dense. Single-threaded on what is given; rows are independent.
#pragma once

#include <cstdint>

#include "strait/base/bfloat16.h"

namespace strait::kernel {

template <class T>
struct LayerNormCall {
  int64_t rows = 0, columns = 0;
  const T* x = nullptr;       // [rows, columns]
  const T* weight = nullptr;  // [columns]
  const T* bias = nullptr;    // [columns] or null
  Wide<T>* mean = nullptr;    // [rows] or null: RMSNorm
  Wide<T>* rstd = nullptr;    // [rows]
  T* out = nullptr;           // [rows, columns]; may be x or base
  double epsilon = 0.0;       // not needed by layer_norm_again
  const T* base = nullptr;    // [rows, columns] added in place of a bias, or null
  Wide<T> from = 0;           // added to every weight
};
/// Writes mean, rstd and out.
template <class T>
void layer_norm(const LayerNormCall<T>& call);
/// Writes out from x and the given mean and rstd; equal to layer_norm's bit for bit.
template <class T>
void layer_norm_again(const LayerNormCall<T>& call);

template <class T>
struct LayerNormBackwardCall {
  int64_t rows = 0, columns = 0;
  const T* x = nullptr;
  const Wide<T>* mean = nullptr;  // or null: RMSNorm
  const Wide<T>* rstd = nullptr;
  const T* weight = nullptr;
  const T* gradient = nullptr;  // of out
  const T* residual = nullptr;  // added to the result, or null; may equal out
  T* out = nullptr;             // gradient of x; may equal gradient
  Wide<T> from = 0;             // added to every weight
};
template <class T>
void layer_norm_backward(const LayerNormBackwardCall<T>& call);

/// Gradients of weight and bias for the columns [column_begin, column_end): sums over all rows in
/// order.
template <class T>
struct LayerNormParametersCall {
  int64_t rows = 0, columns = 0, column_begin = 0, column_end = 0;
  const T* x = nullptr;
  const Wide<T>* mean = nullptr;  // or null: RMSNorm
  const Wide<T>* rstd = nullptr;
  const T* gradient = nullptr;
  Wide<T>* weight_gradient = nullptr;  // [columns]
  Wide<T>* bias_gradient = nullptr;    // [columns] or null
  bool accumulate = false;
};
template <class T>
void layer_norm_parameters(const LayerNormParametersCall<T>& call);

}  // namespace strait::kernel
