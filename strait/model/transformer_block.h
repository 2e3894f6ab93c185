// The transformer block: x + output(attention(qkv(norm(x)))), then +
// down(activation(up(norm(.)))). The shape's style chooses the norm, whether queries and keys are
// turned by RoPE, and the activation. This is the fused form: segments joined, on buffers that
// share memory. Internal to model/.
#pragma once

#include "strait/model/transformer_segments.h"

namespace strait::model {

template <class T>
class TransformerBlock : public Block {
 public:
  TransformerBlock(const ModelShape& shape, int64_t index, Dtype dtype,
                   std::shared_ptr<const RotaryAngles> angles)
      : dtype_(dtype), segments_(shape, index, dtype, std::move(angles)) {}

  void forward(const Call& call, int segment_begin, int segment_end) const override;
  void backward_input(const Call& call, int segment_begin, int segment_end) const override;
  void backward_weight(const Call& call, int segment_begin, int segment_end) const override;
  void backward(const Call& call) const override;
  void forward_backward(const Call& call) const override;
  void forward_cached(const Call& call) const override;
  const SegmentedBlock* segments() const override { return &segments_; }

 private:
  /// What all calls have in common; InternalError unless the block is whole.
  SegmentCall begin(const Call& call) const;
  /// Without a saved bundle several values share memory (ForwardLayout), and SwiGLU's output lies
  /// where the gates were.
  SegmentCall forward_call(const Call& call) const;
  void share_forward_memory(const Call& call, SegmentCall& table) const;
  void skip_norms(const Call& call, SegmentCall& table) const;
  /// Merged: in the workspace, where parts share memory as the segments pass.
  SegmentCall merged_call(const Call& call) const;
  /// Split: everything that backward_weight reads lies in the bundle.
  SegmentCall split_call(const Call& call) const;
  /// What the forward kept, and where the gradient of the residual stream passes through.
  void give_saved(const Call& call, SegmentCall& table) const;
  void attend_cached(const Call& call, const SegmentCall& table) const;

  Dtype dtype_;
  TransformerSegments<T> segments_;
};

extern template class TransformerBlock<float>;
extern template class TransformerBlock<double>;
extern template class TransformerBlock<Bfloat16>;

}  // namespace strait::model
