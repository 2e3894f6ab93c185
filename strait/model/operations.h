// The operations of the blocks, each spread over the rank's threads. Row-major dense matrices of T.
#pragma once

#include <cstdint>

#include "strait/base/random.h"
#include "strait/kernel/dropout.h"
#include "strait/kernel/elementwise.h"
#include "strait/kernel/gemm.h"
#include "strait/kernel/norm.h"
#include "strait/kernel/parallel.h"
#include "strait/kernel/swiglu.h"
#include "strait/sequence/chunks.h"

namespace strait::model {

/// rows x (in -> out) of a linear layer; weights are [out, in].
struct LinearExtent {
  int64_t rows = 0, in = 0, out = 0;
  int64_t gradient_stride = 0;  // of the output gradient's rows; 0: dense
  int64_t input_stride = 0;     // of the input's rows, forward only; 0: dense
  kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic;  // Settings::products
  int64_t stride() const { return gradient_stride > 0 ? gradient_stride : out; }
  int64_t x_stride() const { return input_stride > 0 ? input_stride : in; }
};

/// What goes into a linear layer; `bias` may be null.
template <class T>
struct LinearInput {
  const T *x, *weight, *bias;
};

/// y = x W^T + bias.
template <class T, class Y>
void linear_forward(LinearExtent extent, const LinearInput<T>& input, Y* y, int threads) {
  kernel::gemm<T, Y>({extent.rows,
                      extent.out,
                      extent.in,
                      {input.x, extent.x_stride(), 1},
                      {input.weight, 1, extent.in},
                      y,
                      extent.out,
                      false,
                      input.bias,
                      nullptr,
                      0,
                      extent.products},
                     threads);
}
/// y = base + x W^T + bias; y may be base.
template <class T>
void linear_forward_add(LinearExtent extent, const LinearInput<T>& input, const T* base, T* y,
                        int threads) {
  kernel::gemm<T>({extent.rows,
                   extent.out,
                   extent.in,
                   {input.x, extent.x_stride(), 1},
                   {input.weight, 1, extent.in},
                   y,
                   extent.out,
                   false,
                   input.bias,
                   base,
                   extent.out,
                   extent.products},
                  threads);
}

/// dx = dy W.
template <class T>
void linear_backward_input(LinearExtent extent, const T* dy, const T* weight, T* dx, int threads) {
  kernel::gemm<T>({extent.rows,
                   extent.in,
                   extent.out,
                   {dy, extent.stride(), 1},
                   {weight, extent.in, 1},
                   dx,
                   extent.in,
                   false,
                   nullptr,
                   nullptr,
                   0,
                   extent.products},
                  threads);
}

/// Gradients of a linear layer's parameters; bias null when it has none.
template <class T>
struct LinearGradient {
  Wide<T>* weight = nullptr;
  Wide<T>* bias = nullptr;
  bool accumulate = false;
};

/// db (+)= column sums of dy [rows, columns]; nothing without a bias.
template <class T>
void bias_backward(int64_t rows, int64_t columns, const T* dy, const LinearGradient<T>& gradient,
                   int threads) {
  if (!gradient.bias) return;
  kernel::parallel_ranges(columns, 64, threads, [&](int64_t begin, int64_t end) {
    kernel::column_sums<T>({rows, columns, begin, end, dy, gradient.bias, gradient.accumulate});
  });
}

/// dW (+)= dy^T x, db (+)= column sums of dy.
template <class T>
void linear_backward_weight(LinearExtent extent, const T* dy, const T* x,
                            LinearGradient<T> gradient, int threads) {
  kernel::gemm<T, Wide<T>>({extent.out,
                            extent.in,
                            extent.rows,
                            {dy, 1, extent.stride()},
                            {x, extent.in, 1},
                            gradient.weight,
                            extent.in,
                            gradient.accumulate,
                            nullptr,
                            nullptr,
                            0,
                            extent.products},
                           threads);
  bias_backward(extent.rows, extent.out, dy, gradient, threads);
}

/// Row range of a norm.
template <class T>
kernel::LayerNormCall<T> norm_rows(kernel::LayerNormCall<T> call, int64_t begin, int64_t end) {
  call.rows = end - begin;
  call.x += begin * call.columns;
  call.out += begin * call.columns;
  if (call.base) call.base += begin * call.columns;
  if (call.mean) call.mean += begin;
  call.rstd += begin;
  return call;
}

template <class T>
void norm_forward(const kernel::LayerNormCall<T>& call, int threads) {
  kernel::parallel_ranges(call.rows, 1, threads, [&](int64_t begin, int64_t end) {
    kernel::layer_norm(norm_rows(call, begin, end));
  });
}
/// Recomputes call.out from the saved statistics.
template <class T>
void norm_again(const kernel::LayerNormCall<T>& call, int threads) {
  kernel::parallel_ranges(call.rows, 1, threads, [&](int64_t begin, int64_t end) {
    kernel::layer_norm_again(norm_rows(call, begin, end));
  });
}

/// Gradient of the norm's input (call) and of its weight and bias (parameters).
template <class T>
void norm_backward(const kernel::LayerNormBackwardCall<T>& call,
                   const LinearGradient<T>& parameters, int threads) {
  kernel::parallel_ranges(call.columns, 64, threads, [&](int64_t begin, int64_t end) {
    kernel::layer_norm_parameters<T>({call.rows, call.columns, begin, end, call.x, call.mean,
                                      call.rstd, call.gradient, parameters.weight, parameters.bias,
                                      parameters.accumulate});
  });
  kernel::parallel_ranges(call.rows, 1, threads, [&](int64_t begin, int64_t end) {
    kernel::LayerNormBackwardCall<T> part = call;
    part.rows = end - begin;
    part.x += begin * call.columns;
    part.gradient += begin * call.columns;
    if (part.residual) part.residual += begin * call.columns;
    part.out += begin * call.columns;
    if (part.mean) part.mean += begin;
    part.rstd += begin;
    kernel::layer_norm_backward(part);
  });
}

template <class T>
void gelu_forward(int64_t count, const T* x, T* out, int threads) {
  kernel::parallel_ranges(count, 1024, threads, [&](int64_t begin, int64_t end) {
    kernel::gelu<T>({end - begin, x + begin, out + begin});
  });
}
template <class T>
void gelu_backward(int64_t count, const T* x, T* gradient, T* out, int threads) {
  kernel::parallel_ranges(count, 1024, threads, [&](int64_t begin, int64_t end) {
    kernel::gelu_backward<T>({end - begin, x + begin, gradient + begin, out + begin});
  });
}

/// out = base + (bias + sum) over rows.
template <class T>
void add_sum(const kernel::AddSumCall<T>& call, int threads) {
  kernel::parallel_ranges(call.rows, 1, threads, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * call.columns;
    kernel::add_sum<T>({end - begin, call.columns, call.sum + first, call.bias,
                        call.base ? call.base + first : nullptr, call.out + first});
  });
}

/// out = a + b; out may equal either.
template <class T>
void add_values(int64_t count, const T* a, const T* b, T* out, int threads) {
  kernel::parallel_ranges(count, 1024, threads, [&](int64_t begin, int64_t end) {
    kernel::add_bias<T>({1, end - begin, a + begin, b + begin, out + begin});
  });
}

/// Rows of a SwiGLU; the output's rows are out_stride apart.
template <class T>
void swiglu_forward(const kernel::SwigluCall<T>& call, int threads) {
  kernel::parallel_ranges(call.rows, 1, threads, [&](int64_t begin, int64_t end) {
    kernel::swiglu<T>({end - begin, call.columns, call.x + begin * 2 * call.columns,
                       call.out + begin * call.out_stride, call.out_stride, call.gate});
  });
}
template <class T>
void swiglu_backward(const kernel::SwigluBackwardCall<T>& call, int threads) {
  kernel::parallel_ranges(call.rows, 1, threads, [&](int64_t begin, int64_t end) {
    const int64_t wide = begin * 2 * call.columns;
    kernel::swiglu_backward<T>({end - begin, call.columns, call.x + wide,
                                call.out + begin * call.columns, call.gradient + wide, call.gate});
  });
}

/// Where dropout acts in a block; the names are the purposes of the random streams.
enum class DropoutPlace : uint8_t { kEmbedding, kAttention, kAttentionOutput, kMlpOutput };
const char* dropout_purpose(DropoutPlace place);

/// Which rows dropout is drawn for: element (t, c) of sequence b has index (first_token + position
/// of t) width + first_column + c in the stream (seed, purpose, block, sequences[b]), width being
/// that of whole rows.
struct DropoutSite {
  uint64_t seed = 0;
  DropoutPlace place = DropoutPlace::kEmbedding;
  uint64_t block = 0;
  double rate = 0.0;
  int64_t batch = 0;
  sequence::Share share = {};  // of each sequence: its rows are those that dropout is drawn for
  int64_t first_token = 0;
  const int64_t* sequences = nullptr;         // null: 0, 1, 2, ...
  int64_t first_column = 0, whole_width = 0;  // of rows that are cut; 0: they are whole
  /// Of [batch, tokens], those that a call has; count < 0: all.
  struct Rows {
    int64_t first = 0, count = -1;
  };
  Rows rows = {};
  int64_t num_rows() const { return rows.count < 0 ? batch * share.tokens : rows.count; }
  kernel::DropoutMask mask(int64_t sequence) const {
    const int64_t index = sequences ? sequences[sequence] : sequence;
    return {RandomStream(seed, dropout_purpose(place), block, static_cast<uint64_t>(index)), rate};
  }
};

/// Values of [batch, tokens, width], or of some of these rows, through dropout: out = base + mask
/// x; base may be null.
template <class T>
struct DropCall {
  int64_t width;
  const T *x, *base;
  T* out;
};

template <class T>
void drop(const DropoutSite& site, const DropCall<T>& call, int threads) {
  const int64_t width = call.width, whole = site.whole_width > 0 ? site.whole_width : width;
  kernel::parallel_ranges(site.num_rows(), 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t of_batch = site.rows.first + row;
      const kernel::DropoutMask mask = site.mask(of_batch / site.share.tokens);
      const auto first = static_cast<uint64_t>(
          (site.first_token + site.share.position(of_batch % site.share.tokens)) * whole +
          site.first_column);
      kernel::dropout<T>({width, &mask, first, call.x + row * width,
                          call.base ? call.base + row * width : nullptr, call.out + row * width});
    }
  });
}

}  // namespace strait::model
