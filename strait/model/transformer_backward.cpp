// The backward of TransformerBlock: each segment's input gradient and weight gradient.
#include <algorithm>

#include "strait/base/errors.h"
#include "strait/model/transformer_block.h"

namespace strait::model {

template <class T>
typename TransformerBlock<T>::SavedViews TransformerBlock<T>::saved_views(const Call& call) const {
  ensure(call.saved != nullptr, "backward: no saved bundle");
  const T* saved = static_cast<const T*>(call.saved);
  const SavedLayout keep = saved_layout(extent(call));
  const bool centered = !extent_.style.rms_norm;
  return {centered ? wide(saved + keep.attention_mean) : nullptr,
          wide(saved + keep.attention_rstd),
          centered ? wide(saved + keep.mlp_mean) : nullptr,
          wide(saved + keep.mlp_rstd),
          wide(saved + keep.log_sum_exp),
          saved + keep.qkv,
          saved + keep.attention,
          saved + keep.middle,
          saved + keep.up};
}

template <class T>
typename TransformerBlock<T>::BackwardViews TransformerBlock<T>::merged_views(
    const Call& call) const {
  const BackwardLayout work = backward_layout(extent(call));
  T* workspace = static_cast<T*>(call.workspace);
  T *first = workspace + work.first, *second = workspace + work.second,
    *third = workspace + work.third;
  BackwardViews views{};
  views.normed_attention = views.output_gradient = views.normed_mlp = views.activated = second;
  views.qkv_gradient = views.up_gradient = first;
  views.down_gradient = views.scratch = third;
  views.delta = wide(workspace + work.delta);
  views.query_sum = wide(workspace + work.query_sum);
  return views;
}

template <class T>
typename TransformerBlock<T>::BackwardViews TransformerBlock<T>::split_views(
    const Call& call) const {
  ensure(call.bundle != nullptr, "split backward: no bundle");
  const BlockExtent size = extent(call);
  const BundleLayout layout = bundle_layout(size);
  T* bundle = static_cast<T*>(call.bundle);
  BackwardViews views{};
  views.split = true;
  views.normed_attention = bundle + layout.normed_attention;
  views.qkv_gradient = bundle + layout.qkv_gradient;
  views.attention = bundle + layout.attention;
  views.output_gradient = bundle + layout.output_gradient;
  views.normed_mlp = bundle + layout.normed_mlp;
  views.up_gradient = bundle + layout.up_gradient;
  views.activated = bundle + layout.activated;
  views.down_gradient = bundle + layout.down_gradient;
  views.norm_gradients = wide(bundle + layout.norm_gradients);
  if (!call.workspace) return views;  // backward_weight takes none
  T* workspace = static_cast<T*>(call.workspace);
  const BackwardLayout work = backward_layout(size);
  views.scratch = workspace + work.third;
  views.delta = wide(workspace + work.delta);
  views.query_sum = wide(workspace + work.query_sum);
  return views;
}

template <class T>
LinearGradient<T> TransformerBlock<T>::gradient(const Call& call, const LayerOffset& layer) const {
  return {at_offset<Wide<T>>(call.gradient, layer.weight),
          at_offset<Wide<T>>(call.gradient, layer.bias), call.accumulate};
}

template <class T>
void TransformerBlock<T>::backward(const Call& call) const {
  check_call(call, dtype_);
  const BackwardViews views = merged_views(call);
  for (int segment = 3; segment >= 0; --segment) {
    segment_input(segment, call, views);
    segment_weight(segment, call, views);
  }
}

template <class T>
void TransformerBlock<T>::backward_input(const Call& call, int segment_begin,
                                         int segment_end) const {
  check_call(call, dtype_);
  const BackwardViews views = split_views(call);
  for (int segment = segment_end - 1; segment >= segment_begin; --segment)
    segment_input(segment, call, views);
}

template <class T>
void TransformerBlock<T>::backward_weight(const Call& call, int segment_begin,
                                          int segment_end) const {
  check_call(call, dtype_);
  const BackwardViews views = split_views(call);
  for (int segment = segment_end - 1; segment >= segment_begin; --segment) {
    segment_weight(segment, call, views);
    if (segment == 0) add_norm_gradient(call, views, 0);
    if (segment == 2) add_norm_gradient(call, views, 1);
  }
}

template <class T>
void TransformerBlock<T>::segment_input(int segment, const Call& call,
                                        const BackwardViews& views) const {
  if (segment == 3) down_input(call, views);
  if (segment == 2) norm_up_input(call, views);
  if (segment == 1) attention_output_input(call, views);
  if (segment == 0) norm_qkv_input(call, views);
}

template <class T>
void TransformerBlock<T>::segment_weight(int segment, const Call& call,
                                         const BackwardViews& views) const {
  const int threads = call.settings->threads;
  if (segment == 3) {
    linear_backward_weight<T>(linear(call, ffn_width_, width_), down_gradient(call, views),
                              views.activated, gradient(call, down_), threads);
  } else if (segment == 2) {
    linear_backward_weight<T>(linear(call, width_, extent_.up_width()), views.up_gradient,
                              views.normed_mlp, gradient(call, up_), threads);
  } else if (segment == 1) {
    const T* attention = views.split ? views.attention : saved_views(call).attention;
    linear_backward_weight<T>(linear(call, width_, width_), output_gradient(call, views), attention,
                              gradient(call, output_), threads);
  } else {
    linear_backward_weight<T>(linear(call, width_, extent_.qkv_width()), views.qkv_gradient,
                              views.normed_attention, gradient(call, qkv_), threads);
  }
}

/// The gradient of a residual branch: masked by dropout, or copied for backward_weight, or left alone.
template <class T>
void TransformerBlock<T>::keep_branch_gradient(const Call& call, DropoutPlace place, const T* from,
                                               T* to, bool split) const {
  if (drops(call)) {
    drop<T>(site(call, place), width_, from, nullptr, to, call.settings->threads);
  } else if (split) {
    std::copy_n(from, extent(call).rows * width_, to);
  }
}

template <class T>
const T* TransformerBlock<T>::down_gradient(const Call& call, const BackwardViews& views) const {
  return views.split || drops(call) ? views.down_gradient
                                    : static_cast<const T*>(call.output_gradient);
}

template <class T>
const T* TransformerBlock<T>::output_gradient(const Call& call, const BackwardViews& views) const {
  // Between the segments input_gradient holds the gradient of the residual stream after attention.
  return views.split || drops(call) ? views.output_gradient
                                    : static_cast<const T*>(call.input_gradient);
}

template <class T>
void TransformerBlock<T>::down_input(const Call& call, const BackwardViews& views) const {
  const int threads = call.settings->threads;
  const LinearExtent size = linear(call, ffn_width_, width_);
  keep_branch_gradient(call, DropoutPlace::kMlpOutput, static_cast<const T*>(call.output_gradient),
                       views.down_gradient, views.split);
  const bool gated = extent_.style.gated;
  linear_backward_input<T>(size, down_gradient(call, views), weight(call, down_),
                           gated ? views.activated : views.up_gradient, threads);
  const T* up = saved_views(call).up;
  if (gated) {
    swiglu_backward<T>({size.rows, ffn_width_, up, views.activated, views.up_gradient}, threads);
  } else {
    gelu_backward<T>(size.rows * ffn_width_, up, views.up_gradient, views.activated, threads);
  }
}

template <class T>
void TransformerBlock<T>::norm_up_input(const Call& call, const BackwardViews& views) const {
  const int threads = call.settings->threads;
  const SavedViews saved = saved_views(call);
  const LinearExtent size = linear(call, width_, extent_.up_width());
  linear_backward_input<T>(size, views.up_gradient, weight(call, up_), views.scratch, threads);
  norm_again<T>({size.rows, width_, saved.middle, weight(call, mlp_norm_), bias(call, mlp_norm_),
                 const_cast<Wide<T>*>(saved.mlp_mean), const_cast<Wide<T>*>(saved.mlp_rstd),
                 views.normed_mlp},
                threads);
  norm_backward<T>(
      {size.rows, width_, saved.middle, saved.mlp_mean, saved.mlp_rstd, weight(call, mlp_norm_),
       views.scratch, static_cast<const T*>(call.output_gradient),
       static_cast<T*>(call.input_gradient)},
      norm_target(call, views, 1), threads);
}

template <class T>
void TransformerBlock<T>::attention_output_input(const Call& call,
                                                 const BackwardViews& views) const {
  const LinearExtent size = linear(call, width_, width_);
  keep_branch_gradient(call, DropoutPlace::kAttentionOutput,
                       static_cast<const T*>(call.input_gradient), views.output_gradient,
                       views.split);
  linear_backward_input<T>(size, output_gradient(call, views), weight(call, output_), views.scratch,
                           call.settings->threads);
  attend_backward(call, views);
  if (views.split) std::copy_n(saved_views(call).attention, size.rows * width_, views.attention);
}

template <class T>
void TransformerBlock<T>::attend_backward(const Call& call, const BackwardViews& views) const {
  const int64_t kv_heads = extent_.kv_heads, group = heads_ / kv_heads;
  kernel::parallel_ranges(
      call.batch->batch * kv_heads, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item)
          attend_backward_group(call, views, item / kv_heads, item % kv_heads * group);
      });
}

/// The heads from `head` on that share keys and values.
template <class T>
void TransformerBlock<T>::attend_backward_group(const Call& call, const BackwardViews& views,
                                                int64_t sequence, int64_t head) const {
  const SavedViews saved = saved_views(call);
  const int64_t tokens = call.batch->tokens, stride = extent_.qkv_width();
  const int64_t head_width = extent_.head_width(), group = heads_ / extent_.kv_heads;
  const int64_t narrow = sequence * tokens * width_ + head * head_width;
  const int64_t rows = (sequence * heads_ + head) * tokens;
  const kernel::DropoutMask mask = site(call, DropoutPlace::kAttention).mask(sequence);
  kernel::AttentionBackwardCall<T> shared;
  shared.forward = attention_call(call, sequence, head, saved.qkv);
  shared.forward.out = const_cast<T*>(saved.attention) + narrow;
  shared.forward.out_stride = width_;
  shared.forward.log_sum_exp = const_cast<Wide<T>*>(saved.log_sum_exp) + rows;
  shared.forward.mask = &mask;
  shared.out_gradient = views.scratch + narrow;
  shared.out_gradient_stride = width_;
  T* gradient = views.qkv_gradient + sequence * tokens * stride;
  shared.dq = gradient + head * head_width;
  shared.dk = gradient + width_ + head / group * head_width;
  shared.dv = shared.dk + extent_.kv_width();
  shared.gradient_stride = stride;
  shared.delta = views.delta + rows;
  shared.dq_sum = views.query_sum + rows * head_width;
  shared.group = group;
  kernel::attention_backward(shared);
}

template <class T>
void TransformerBlock<T>::norm_qkv_input(const Call& call, const BackwardViews& views) const {
  const int threads = call.settings->threads;
  const SavedViews saved = saved_views(call);
  const LinearExtent size = linear(call, width_, extent_.qkv_width());
  const T* input = static_cast<const T*>(call.input);
  T* input_gradient = static_cast<T*>(call.input_gradient);
  rotate(call, views.qkv_gradient, true);
  linear_backward_input<T>(size, views.qkv_gradient, weight(call, qkv_), views.scratch, threads);
  norm_again<T>({size.rows, width_, input, weight(call, attention_norm_),
                 bias(call, attention_norm_), const_cast<Wide<T>*>(saved.attention_mean),
                 const_cast<Wide<T>*>(saved.attention_rstd), views.normed_attention},
                threads);
  norm_backward<T>({size.rows, width_, input, saved.attention_mean, saved.attention_rstd,
                    weight(call, attention_norm_), views.scratch, input_gradient, input_gradient},
                   norm_target(call, views, 0), threads);
}

template <class T>
LinearGradient<T> TransformerBlock<T>::norm_target(const Call& call, const BackwardViews& views,
                                                   int slot) const {
  if (!views.split) return gradient(call, slot == 0 ? attention_norm_ : mlp_norm_);
  Wide<T>* target = views.norm_gradients + 2 * slot * width_;
  return {target, target + width_, false};
}

template <class T>
void TransformerBlock<T>::add_norm_gradient(const Call& call, const BackwardViews& views,
                                            int slot) const {
  const LinearGradient<T> target = gradient(call, slot == 0 ? attention_norm_ : mlp_norm_);
  const Wide<T>* from = views.norm_gradients + 2 * slot * width_;
  for (int64_t c = 0; c < width_; ++c) {
    target.weight[c] = target.accumulate ? target.weight[c] + from[c] : from[c];
    if (target.bias)
      target.bias[c] = target.accumulate ? target.bias[c] + from[width_ + c] : from[width_ + c];
  }
}

template class TransformerBlock<float>;
template class TransformerBlock<double>;
template class TransformerBlock<Bfloat16>;

}  // namespace strait::model
