// Attention of a range of queries against a block of keys: what one step of ring attention computes
// (Liu et al. 2023). Partial results and their log-sum-exps merge to the attention over all keys.
#pragma once

#include <cstdint>

#include "strait/kernel/attention.h"

namespace strait::kernel {

/// `rows` as in AttentionCall, but k and v have `keys` rows, the first of which stands at position
/// `key_first`; `rows.out` is not used. Query i, at position `rows.first + i`, attends those keys
/// of the block that AttentionCall lets it attend: positions, `rows.starts` and the window count in
/// one document or one packed row. Dropout is keyed by the same positions, so that it does not
/// depend on the partition.
template <class T>
struct PartialAttentionCall {
  AttentionCall<T> rows;  // log_sum_exp is written; any of `queries` and `keys` may be 0
  int64_t keys = 0, key_first = 0;
  Wide<T>* out = nullptr;  // [queries] rows of out_stride elements
  int64_t out_stride = 0;
};
/// Writes out, normalised over the keys of this block alone, and log_sum_exp: minus infinity beside
/// zeros for a query that attends none of them. A block that holds every key a query attends, from
/// position 0 on, gives the bits of `attention` before they are rounded to T.
template <class T>
void partial_attention(const PartialAttentionCall<T>& call);

/// Adds the softmax over other keys: (out, lse) becomes that over both sets of keys. Never
/// overflows; a part with minus infinity leaves the other one's bits. Swapping the two parts
/// changes at most the last bits of the sums.
template <class W>
struct MergeCall {
  int64_t rows = 0, width = 0;
  W* out = nullptr;
  int64_t out_stride = 0;
  W* log_sum_exp = nullptr;  // [rows]
  const W* other_out = nullptr;
  int64_t other_stride = 0;
  const W* other_log_sum_exp = nullptr;
};
/// Defined for float and double.
template <class W>
void merge_attention(const MergeCall<W>& call);

/// delta[row] = sum over columns of out[row] out_gradient[row], which the backward of every block
/// takes.
template <class T>
struct DeltaCall {
  int64_t rows = 0, width = 0;
  const T* out = nullptr;
  int64_t out_stride = 0;
  const T* out_gradient = nullptr;
  int64_t out_gradient_stride = 0;
  Wide<T>* delta = nullptr;
};
template <class T>
void attention_delta(const DeltaCall<T>& call);

/// Backward of one block. `rows.log_sum_exp` is the merged one, over all keys, and `delta` belongs
/// to the merged output: no sum over blocks is missing then. `group` heads share k and v, laid out
/// as in AttentionBackwardCall. The gradients are wide and *added to*: those of keys and values
/// travel with their block and collect the parts of all ranks.
template <class T>
struct PartialAttentionBackwardCall {
  AttentionCall<T> rows;
  int64_t keys = 0, key_first = 0;
  const T* out_gradient = nullptr;
  int64_t out_gradient_stride = 0;
  const Wide<T>* delta = nullptr;  // [group, queries]
  Wide<T>* dq = nullptr;           // [queries] rows of dq_stride elements
  int64_t dq_stride = 0;
  Wide<T>* dk = nullptr;  // [keys] rows of kv_gradient_stride elements; dv likewise
  Wide<T>* dv = nullptr;
  int64_t kv_gradient_stride = 0;
  int64_t group = 1;
};
template <class T>
void partial_attention_backward(const PartialAttentionBackwardCall<T>& call);

}  // namespace strait::kernel
