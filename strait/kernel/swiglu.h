// SwiGLU (Shazeer 2020) on rows [gate, up]: silu(gate) up, silu(g) = g / (1 + exp(-g)). GeGLU has
// GELU in its tanh form (elementwise.h) in place of silu. Single-threaded on what is given; the
// result of an element does not depend on the range that it is computed in.
#pragma once

#include <cstdint>

namespace strait::kernel {

/// What the gates pass through.
enum class Gate : uint8_t { kSilu, kGelu };

template <class T>
struct SwigluCall {
  int64_t rows = 0, columns = 0;
  const T* x = nullptr;  // [rows, 2 columns]: gate, up
  T* out =
      nullptr;  // [rows] rows of out_stride elements; may be the gates: x with stride 2 columns
  int64_t out_stride = 0;  // >= columns
  Gate gate = Gate::kSilu;
};
template <class T>
void swiglu(const SwigluCall<T>& call);

template <class T>
struct SwigluBackwardCall {
  int64_t rows = 0, columns = 0;
  const T* x = nullptr;  // [rows, 2 columns]
  T* out = nullptr;  // [rows, columns]: its gradient <- its value, equal to swiglu's bit for bit
  T* gradient = nullptr;  // [rows, 2 columns], overwritten: gradient of x
  Gate gate = Gate::kSilu;
};
template <class T>
void swiglu_backward(const SwigluBackwardCall<T>& call);

}  // namespace strait::kernel
