// The transformer block: x + output(attention(qkv(norm(x)))), then + down(activation(up(norm(.)))). The shape's
// style chooses the norm, whether queries and keys are turned by RoPE, and the activation. Internal to model/.
#pragma once

#include "strait/kernel/attention.h"
#include "strait/model/block.h"
#include "strait/model/decoder_blocks.h"
#include "strait/model/operations.h"
#include "strait/shape/block_layout.h"

namespace strait::model {

/// Offset of a layer's weight and bias (-1: none) in the unit.
struct LayerOffset {
  int64_t weight = 0, bias = -1;
};

template <class T>
class TransformerBlock : public Block {
 public:
  TransformerBlock(const ModelShape& shape, int64_t index, Dtype dtype,
                   std::shared_ptr<const RotaryAngles> angles);

  void forward(const Call& call, int segment_begin, int segment_end) const override;
  void backward_input(const Call& call, int segment_begin, int segment_end) const override;
  void backward_weight(const Call& call, int segment_begin, int segment_end) const override;
  void backward(const Call& call) const override;
  void forward_backward(const Call& call) const override;
  void forward_cached(const Call& call) const override;

 private:
  /// Addresses of one forward call; means null for RMSNorm. Without a saved bundle several share memory
  /// (ForwardLayout), and SwiGLU's output lies where the gates were.
  struct ForwardViews {
    Wide<T>*attention_mean, *attention_rstd, *mlp_mean, *mlp_rstd, *log_sum_exp;
    T *normed, *qkv, *attention, *middle, *up, *activated;
    int64_t activated_stride;
  };
  ForwardViews forward_views(const Call& call) const;

  /// What the forward kept.
  struct SavedViews {
    const Wide<T>*attention_mean, *attention_rstd, *mlp_mean, *mlp_rstd, *log_sum_exp;
    const T *qkv, *attention, *middle, *up;
  };
  SavedViews saved_views(const Call& call) const;

  /// Addresses of one backward call. Split: everything that backward_weight reads lies in the bundle.
  /// Merged: in the workspace, where parts share memory as the segments pass.
  struct BackwardViews {
    bool split;
    T *normed_attention, *qkv_gradient, *attention, *output_gradient;
    T *normed_mlp, *up_gradient, *activated, *down_gradient;
    Wide<T>* norm_gradients;    // split: [4, width]
    T* scratch;                 // [rows, width]
    Wide<T>*delta, *query_sum;  // scratch of attention's backward
  };
  BackwardViews merged_views(const Call& call) const;
  BackwardViews split_views(const Call& call) const;

  BlockExtent extent(const Call& call) const;
  static Wide<T>* wide(T* at) { return reinterpret_cast<Wide<T>*>(at); }
  static const Wide<T>* wide(const T* at) { return reinterpret_cast<const Wide<T>*>(at); }
  LinearExtent linear(const Call& call, int64_t in, int64_t out) const;
  bool drops(const Call& call) const { return dropout_ > 0.0 && call.settings->training; }
  DropoutSite site(const Call& call, DropoutPlace place) const;
  LinearGradient<T> gradient(const Call& call, const LayerOffset& layer) const;
  const T* weight(const Call& call, const LayerOffset& layer) const {
    return at_offset<T>(call.weights, layer.weight);
  }
  const T* bias(const Call& call, const LayerOffset& layer) const {
    return at_offset<T>(call.weights, layer.bias);
  }

  /// Turns queries and keys, or their gradients back, by the angles of their positions.
  void rotate(const Call& call, T* qkv, bool back) const;
  kernel::AttentionCall<T> attention_call(const Call& call, int64_t sequence, int64_t head,
                                          const T* qkv) const;

  // Forward of the four segments; attend_cached stands in for attend when generating.
  void norm_qkv(const Call& call, const ForwardViews& views) const;
  void attend(const Call& call, const ForwardViews& views) const;
  void attend_cached(const Call& call, const ForwardViews& views) const;
  void attention_output(const Call& call, const ForwardViews& views) const;
  void norm_up(const Call& call, const ForwardViews& views) const;
  void down(const Call& call, const ForwardViews& views) const;

  /// target = base + dropout(x W^T + bias); `scratch` serves when target equals base.
  struct Branch {
    LinearExtent extent;
    const LayerOffset* layer;
    DropoutPlace place;
    const T *x, *base;
    T *target, *scratch;
  };
  void add_branch(const Call& call, const Branch& branch) const;

  // Backward of the segments, last to first.
  void segment_input(int segment, const Call& call, const BackwardViews& views) const;
  void segment_weight(int segment, const Call& call, const BackwardViews& views) const;
  void down_input(const Call& call, const BackwardViews& views) const;
  void norm_up_input(const Call& call, const BackwardViews& views) const;
  void attention_output_input(const Call& call, const BackwardViews& views) const;
  void norm_qkv_input(const Call& call, const BackwardViews& views) const;
  void attend_backward(const Call& call, const BackwardViews& views) const;
  void attend_backward_group(const Call& call, const BackwardViews& views, int64_t sequence,
                             int64_t head) const;
  void keep_branch_gradient(const Call& call, DropoutPlace place, const T* from, T* to,
                            bool split) const;
  const T* down_gradient(const Call& call, const BackwardViews& views) const;
  const T* output_gradient(const Call& call, const BackwardViews& views) const;
  /// Gradient target of a norm: the unit when merged, the bundle's slot (0 or 1) when split.
  LinearGradient<T> norm_target(const Call& call, const BackwardViews& views, int slot) const;
  void add_norm_gradient(const Call& call, const BackwardViews& views, int slot) const;

  Dtype dtype_;
  int64_t index_, width_, ffn_width_, heads_;
  BlockExtent extent_;  // without rows
  double dropout_, norm_eps_;
  std::shared_ptr<const RotaryAngles> angles_;
  LayerOffset attention_norm_, qkv_, output_, mlp_norm_, up_, down_;
};

extern template class TransformerBlock<float>;
extern template class TransformerBlock<double>;
extern template class TransformerBlock<Bfloat16>;

}  // namespace strait::model
