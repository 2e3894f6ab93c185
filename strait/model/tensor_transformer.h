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
  /// `angles`: [context, head_width], cosines then sines of the block's layer_form, wide; undefined
  /// where positions are learned.
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
    at::Tensor query_key_rstd, raw_query_key;
    at::Tensor attention_branch, attention_branch_rstd, mlp_branch, mlp_branch_rstd;
  };
  /// How a branch ends: its product, and the norm behind it where the family has one.
  struct Ending {
    TensorLayer product, norm;
    DropoutPlace place = DropoutPlace::kAttentionOutput;
    at::Tensor Saved::*branch = nullptr;
    at::Tensor Saved::*rstd = nullptr;
  };
  /// target = base + the branch's result from x.
  struct Stream {
    at::Tensor x, base, target;
  };
  /// The norms of a row's queries or keys: `count` of `width` elements each from column `first` on.
  struct QueryKeyNorms {
    TensorLayer layer;
    int64_t first = 0, count = 0, width = 0;
    int64_t rstd = 0;  // place of the first among the row's
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
  void add_branch(const Call& call, const Ending& ending, const Saved& saved,
                  const Stream& stream) const;
  at::Tensor branch_gradient(const Call& call, const Ending& ending, const Saved& saved,
                             const at::Tensor& slope) const;
  at::Tensor normed(const Call& call, const TensorLayer& norm, const at::Tensor& x,
                    NormResult kept) const;
  at::Tensor normed_again(const Call& call, const TensorLayer& norm, const at::Tensor& x,
                          const NormResult& kept) const;
  at::Tensor entry_gradient(const Call& call, const TensorLayer& norm, const NormResult& kept,
                            const at::Tensor& x, const at::Tensor& slope) const;
  void normalize_query_key(const Call& call, const QueryKeyNorms& part, const Saved& saved) const;
  void query_key_gradient(const Call& call, const QueryKeyNorms& part, const Saved& saved,
                          const at::Tensor& slope) const;
  at::Tensor through_gate(const at::Tensor& gate) const;
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
  int64_t window_;
  double scale_;  // of scores; 0: by the width of heads
  double cap_;    // of scores; 0: none
  TensorNorm norm_;
  at::Tensor angles_;
  TensorLayer attention_norm_, qkv_, mlp_norm_, up_;
  Ending attention_end_, mlp_end_;
  std::vector<QueryKeyNorms> query_key_;  // of queries, of keys; empty without
};

}  // namespace strait::model
