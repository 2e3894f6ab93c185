// Causal attention in ATen operators. Internal to model/.
#pragma once

#include <ATen/core/Tensor.h>

#include "strait/model/tensor_operations.h"

namespace strait::model {

/// Heads and rows of one call; query i stands at position `first + i` of its sequence.
struct TensorAttention {
  int64_t heads = 0, kv_heads = 0, head_width = 0;
  int64_t first = 0;
  int64_t window = 0;                    // kernel::AttentionCall's; 0: none
  at::Tensor starts;                     // [batch, queries] int32 first key, or undefined
  const DropoutSite* dropout = nullptr;  // null: none
  double scale = 0.0;                    // kernel::AttentionCall's
  double cap = 0.0;                      // likewise
};

/// query [batch, queries, heads * head_width]; key, value [batch, keys, kv_heads * head_width];
/// each may be a slice of wider rows. out: as query, dense; log_sum_exp [batch, heads, queries]
/// wide, or undefined: not wanted.
struct AttentionTensors {
  at::Tensor query, key, value, out, log_sum_exp;
};
/// Without documents, dropout, window, scale and cap bf16 runs in LibTorch's flash attention on a
/// GPU; otherwise scores are made for as many sequences at a time as 256 MiB hold.
void tensor_attention(const TensorTypes& types, const TensorAttention& form,
                      const AttentionTensors& tensors);
/// Gradients into slices of rows, overwritten; `first` must be 0.
struct AttentionGradients {
  at::Tensor out, query, key, value;
};
void tensor_attention_backward(const TensorTypes& types, const TensorAttention& form,
                               const AttentionTensors& tensors,
                               const AttentionGradients& gradients);

}  // namespace strait::model
