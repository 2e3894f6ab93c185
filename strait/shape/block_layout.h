// Where each tensor of a block lies inside its saved bundle and its workspaces. Used by block_sizes
// and by the blocks of model/, so that sizes and addresses cannot differ. Offsets and totals count
// elements of the activations; every part starts at a multiple of kPartAlignment of them.
// Statistics and norm gradients are wide: fp32 beside bf16 activations, each as two elements,
// otherwise like activations.
#pragma once

#include <cstdint>

#include "strait/base/dtype.h"
#include "strait/shape/shape.h"

namespace strait {

inline constexpr int64_t kPartAlignment = 16;  // 64 bytes of fp32, 128 of fp64; bf16: 32, 64 bytes

/// The numbers that a transformer block's buffers depend on, on one of the `x` * `y` ranks that
/// share the block: heads and ffn_width are this rank's of x, width is what this rank of y holds of
/// the residual stream. rows = batch * tokens.
struct BlockExtent {
  int64_t rows = 0, width = 0, ffn_width = 0, heads = 0, kv_heads = 0, head_width = 0;
  BlockStyle style = {};
  int64_t wide = 1;  // elements of the activations that a wide one takes: wide_elements(dtype)
  int64_t x = 1, y = 1;
  int64_t exact = 1;     // elements of the activations that an fp64 number takes
  int64_t sequence = 1;  // ranks whose keys a query attends to
  SequenceEngine engine = SequenceEngine::kGathered;
  /// Rows of what attention reads and writes where they are more than `rows`: a plan has moved
  /// tokens, so that attention and linear modules have different ones.
  int64_t attention_rows = 0;
  /// A plan has moved the residual stream instead: all segments up to attention_add have
  /// attention_rows, which may be fewer.
  bool attends_apart = false;
  int64_t border_rows() const { return attention_rows > rows ? attention_rows : rows; }
  int64_t attended_rows() const { return attends_apart ? attention_rows : border_rows(); }
  /// Of what the segments up to attention_add have for themselves, beside attention and between
  /// products.
  int64_t first_rows() const { return attends_apart ? attention_rows : rows; }
  int64_t first_own_rows() const { return attends_apart ? attention_rows : own_rows(); }
  int64_t row_split = 1;  // ranks of x over which the rows between products are split
  /// This rank's of them.
  int64_t own_rows() const { return rows / row_split; }
  bool is(SequenceEngine one) const { return sequence > 1 && engine == one; }
  /// What is kept of up lies beside the saved bundle, so that it can end before the backward of
  /// attention, which has the values of other ranks too.
  bool keeps_up_apart() const { return sequence > 1; }
  /// Rows of keys that are gathered from other ranks, and this rank's among them.
  int64_t gathered_rows() const { return is(SequenceEngine::kGathered) ? sequence * rows : 0; }
  int64_t whole_width() const { return width * y; }
  /// Numbers of a row that ranks of y sum for the norms before branches, and behind them.
  int64_t norm_moments() const { return y == 1 || !style.norm_before ? 0 : style.rms_norm ? 1 : 2; }
  int64_t branch_moments() const { return y > 1 && style.norm_behind ? 1 : 0; }
  int64_t attention_width() const { return head_width * heads; }
  int64_t kv_width() const { return head_width * kv_heads; }
  int64_t qkv_width() const { return attention_width() + 2 * kv_width(); }
  int64_t up_width() const { return style.gated ? 2 * ffn_width : ffn_width; }
  bool norms_query_key() const { return style.query_key_norm != QueryKeyNorm::kNone; }
  /// Columns of a branch that is normalized.
  int64_t branch_width() const { return style.norm_behind ? width : 0; }
  /// Columns of queries and keys that are normalized, norms of a row, and elements of the weights.
  int64_t query_key_width() const { return norms_query_key() ? attention_width() + kv_width() : 0; }
  int64_t query_key_norms() const {
    const bool heads_apart = style.query_key_norm == QueryKeyNorm::kHead;
    return heads_apart ? heads + kv_heads : norms_query_key() ? 2 : 0;
  }
  int64_t query_key_weights() const {
    return style.query_key_norm == QueryKeyNorm::kHead ? 2 * head_width : query_key_width();
  }
};
BlockExtent block_extent(const ModelShape& model, int64_t batch, int64_t tokens, Dtype dtype);
constexpr int64_t wide_elements(Dtype dtype) { return dtype_bytes(dtype) == 2 ? 2 : 1; }

/// Kept from forward to backward beside the input: no T x T matrix, no repeated keys or values, no
/// output of a norm or an activation. What lies between products has own_rows, the rest rows.
struct SavedLayout {
  int64_t attention_mean = 0, attention_rstd = 0;          // [rows] each; RMSNorm has no mean
  int64_t mlp_mean = 0, mlp_rstd = 0;                      // [rows] each
  int64_t query_key_rstd = 0;                              // [rows, query_key_norms]
  int64_t attention_branch_rstd = 0, mlp_branch_rstd = 0;  // [rows] each, of norms behind
  int64_t log_sum_exp = 0;                                 // [batch, heads, tokens]
  int64_t qkv = 0;            // [rows, qkv_width], queries and keys after RoPE
  int64_t attention = 0;      // [rows, attention_width] before the output projection
  int64_t middle = 0;         // [rows, width] residual stream after attention
  int64_t up = 0;             // [rows, up_width] before the activation; SwiGLU: gate, up
  int64_t raw_query_key = 0;  // [rows, query_key_width] before their norms
  int64_t attention_branch = 0, mlp_branch = 0;  // [rows, width] each, before norms behind them
  int64_t elements = 0;
};
SavedLayout saved_layout(const BlockExtent& extent);

/// Forward scratch. With saved == nullptr the parts of SavedLayout share memory: qkv with up (dead
/// after attention), the norms' outputs with attention; the residual stream lies in the output.
struct ForwardLayout {
  int64_t normed = 0;  // [rows, max(width, attention_width)]
  int64_t wide = 0;    // [rows, max(qkv_width, up_width)]: qkv, up; the activation when training
  int64_t branch = 0;  // [rows, width] before a norm behind it, when nothing is kept
  int64_t statistics = 0;  // mean, rstd, log_sum_exp when nothing is kept
  int64_t elements = 0;
};
ForwardLayout forward_layout(const BlockExtent& extent);

/// What backward_weight needs, complete in itself: the input and the output gradient of every
/// linear layer, and the finished gradients of the norms. First what may wait (deferred_values in
/// segment.h). Where rows are split, what ranks of x exchange is not in it (segment.h).
struct BundleLayout {
  int64_t normed_attention = 0;     // [rows, width] input of qkv
  int64_t qkv_gradient = 0;         // [rows, qkv_width]
  int64_t normed_mlp = 0;           // [rows, width] input of up
  int64_t up_gradient = 0;          // [rows, up_width]
  int64_t norm_gradients = 0;       // [4, width]: attention weight, bias; mlp weight, bias
  int64_t deferred_elements = 0;    // of these
  int64_t attention = 0;            // [rows, attention_width] input of the output projection
  int64_t output_gradient = 0;      // [rows, width]
  int64_t activated = 0;            // [rows, ffn_width] input of down
  int64_t down_gradient = 0;        // [rows, width]
  int64_t query_key_gradients = 0;  // [query_key_weights]: queries, keys
  int64_t branch_gradients = 0;     // [2, width]: weights of the norms behind attention and MLP
  int64_t elements = 0;
};
BundleLayout bundle_layout(const BlockExtent& extent);

/// Scratch of the merged backward, which handles one segment after the other and so reuses memory:
/// `first` holds up_gradient, then qkv_gradient; `second` holds the input of the linear layer at
/// hand and the gradient of that input (or of the branch).
struct BackwardLayout {
  int64_t first = 0;
  int64_t second = 0;
  int64_t third = 0;      // [rows, max(width, attention_width)]
  int64_t delta = 0;      // [batch, heads, tokens], wide: scratch of attention's backward
  int64_t query_sum = 0;  // [batch, heads, tokens, head width], wide; nothing unless bf16
  int64_t elements = 0;
};
BackwardLayout backward_layout(const BlockExtent& extent);

/// Scratch of the head for chunks of `chunk_rows` rows.
struct HeadLayout {
  int64_t logits = 0;  // [chunk, vocabulary], wide; their gradient in the same rows, not wide
  int64_t normed = 0;  // [chunk, width]
  int64_t mean = 0, rstd = 0;  // [chunk] each, wide
  int64_t losses = 0;          // [chunk] of double
  int64_t forward_elements = 0;
  int64_t normed_gradient = 0;  // [chunk, width]
  int64_t backward_elements = 0;
};
HeadLayout head_layout(int64_t chunk_rows, int64_t width, int64_t vocabulary, Dtype dtype);

}  // namespace strait
