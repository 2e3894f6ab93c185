// The transformer block in ATen operators. Internal to model/.
#pragma once

#include "strait/model/decoder_blocks.h"
#include "strait/model/tensor_attention.h"
#include "strait/model/tensor_operations.h"
#include "strait/shape/block_layout.h"

namespace strait::model {

/// What tensor blocks do not do.
[[noreturn]] void refuse_split_backward(const std::string& block);

class TensorTransformerBlock : public Block {
 public:
  /// `angles`: [context, head_width], cosines then sines, wide; undefined where positions are
  /// learned.
  TensorTransformerBlock(const ModelShape& shape, int64_t index, const TensorTypes& types,
                         at::Tensor angles);

  void forward(const Call& call, int segment_begin, int segment_end) const override;
  void backward_input(const Call&, int, int) const override { refuse_split_backward(name_); }
  void backward_weight(const Call&, int, int) const override { refuse_split_backward(name_); }
  void backward(const Call& call) const override;
  void forward_backward(const Call& call) const override;
  void forward_cached(const Call& call) const override;

 private:
  /// Tensors over the saved bundle, or of their own.
  struct Saved {
    at::Tensor attention_mean, attention_rstd, mlp_mean, mlp_rstd, log_sum_exp;
    at::Tensor qkv, attention, middle, up;
  };
  Saved saved_of(const Call& call) const;
  Saved unsaved(const Call& call) const;

  int64_t rows(const Call& call) const { return call.batch->batch * call.batch->tokens; }
  at::Tensor matrix(const Call& call, const void* data, int64_t width) const;
  bool drops(const Call& call) const { return dropout_ > 0.0 && call.settings->training; }
  DropoutSite site(const Call& call, DropoutPlace place) const;
  TensorAttention attention_form(const Call& call, const DropoutSite* dropout) const;
  AttentionTensors attention_tensors(const Call& call, const Saved& saved) const;
  /// [batch, tokens, columns] of rows of qkv, from `first` on.
  at::Tensor columns(const Call& call, const at::Tensor& qkv, int64_t first, int64_t count) const;
  /// Turns queries and keys in place, or their gradients back.
  void rotate(const Call& call, const at::Tensor& qkv, bool back) const;
  at::Tensor dropped(const Call& call, DropoutPlace place, const at::Tensor& values) const;
  /// The end of a branch: its last layer, that layer's input, and where dropout stands behind it.
  struct BranchEnd {
    const TensorLayer& layer;
    at::Tensor x;
    DropoutPlace place;
  };
  /// target = base + dropout(x W^T + bias).
  void add_branch(const Call& call, const BranchEnd& end, const at::Tensor& base,
                  const at::Tensor& target) const;
  at::Tensor activated(const at::Tensor& up) const;
  at::Tensor activation_gradient(const at::Tensor& up, const at::Tensor& slope) const;

  void norm_qkv(const Call& call, Saved& saved) const;
  void attend(const Call& call, const Saved& saved) const;
  void attend_cached(const Call& call, const Saved& saved) const;
  void norm_up(const Call& call, Saved& saved) const;

  at::Tensor backward_mlp(const Call& call, const Saved& saved) const;
  at::Tensor backward_attention(const Call& call, const Saved& saved,
                                const at::Tensor& slope) const;

  std::string name_;
  TensorTypes types_;
  int64_t index_, width_, ffn_width_, heads_;
  BlockExtent extent_;  // without rows
  double dropout_;
  TensorNorm norm_;
  at::Tensor angles_;
  TensorLayer attention_norm_, qkv_, output_, mlp_norm_, up_, down_;
};

}  // namespace strait::model
