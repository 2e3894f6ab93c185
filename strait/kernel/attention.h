// Causal attention of one (sequence, head) on strided rows, in tiles of queries x keys: no T x T
// matrix (FlashAttention, Dao et al. 2022; the backward recomputes probabilities from the
// log-sum-exp).
#pragma once

#include <cstdint>

#include "strait/base/bfloat16.h"
#include "strait/kernel/dropout.h"
#include "strait/kernel/products.h"

namespace strait::kernel {

/// Query i stands at position `first + i` and attends keys [starts ? starts[i] : 0, first + i],
/// with a window only the last `window` of them. Probabilities are dropped with mask element (head
/// << 40) + (position << 20) + key.
template <class T>
struct AttentionCall {
  int64_t queries = 0, first = 0, head_width = 0;
  int64_t window = 0;    // 0: none
  const T* q = nullptr;  // [queries] rows of q_stride elements
  int64_t q_stride = 0;
  const T* k = nullptr;  // [first + queries] rows of kv_stride elements; v likewise
  const T* v = nullptr;
  int64_t kv_stride = 0;
  T* out = nullptr;  // [queries] rows of out_stride elements
  int64_t out_stride = 0;
  Wide<T>* log_sum_exp = nullptr;   // [queries] of the scaled scores, or null
  const int32_t* starts = nullptr;  // [queries] or null
  const DropoutMask* mask = nullptr;
  uint64_t head = 0;
  NarrowProducts products = NarrowProducts::kAutomatic;  // bf16 only
  double scale = 0.0;                                    // of scores; 0: 1 / sqrt(head_width)
  double cap = 0.0;  // soft cap of scaled scores, cap tanh(score / cap) (Gemma 2); 0: none
};
/// Writes out and log_sum_exp. Scores, probabilities' sums and results are summed up in Wide<T>;
/// bf16 probabilities are rounded before they multiply values. Single-threaded; the calling thread
/// keeps 13 packed tiles from its first call on: 0.5 MB at 64 columns in fp32.
template <class T>
void attention(const AttentionCall<T>& call);

/// Gradients of q, k, v (rows of gradient_stride elements, overwritten); `forward.first` must be 0.
/// `group` heads share k and v: head number g of them has its q, out, out_gradient and dq g *
/// head_width elements behind the first one's, its log_sum_exp, delta and dq_sum g * queries rows;
/// dk and dv are the sums over all.
template <class T>
struct AttentionBackwardCall {
  AttentionCall<T> forward;  // out and log_sum_exp as attention wrote them
  const T* out_gradient = nullptr;
  int64_t out_gradient_stride = 0;
  T* dq = nullptr;
  T* dk = nullptr;
  T* dv = nullptr;
  int64_t gradient_stride = 0;
  /// [group, queries]: delta of each query (DeltaCall), made here; without `forward.out` it is
  /// given.
  Wide<T>* delta = nullptr;
  Wide<T>* dq_sum =
      nullptr;  // scratch [group, queries, head_width]; only for bf16, which keeps no sums
  int64_t group = 1;
};
template <class T>
void attention_backward(const AttentionBackwardCall<T>& call);

}  // namespace strait::kernel
