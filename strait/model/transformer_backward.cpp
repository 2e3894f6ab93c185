// The backward of TransformerBlock: each segment's input gradient and weight gradient.
#include <algorithm>

#include "strait/base/errors.h"
#include "strait/kernel/attention.h"
#include "strait/model/transformer_block.h"

namespace strait::model {

template <class T>
typename TransformerBlock<T>::SavedViews TransformerBlock<T>::saved_views(const Call& call) const {
  ensure(call.saved != nullptr, "backward: no saved bundle");
  const T* saved = static_cast<const T*>(call.saved);
  const SavedLayout keep = saved_layout(extent(call));
  return {wide(saved + keep.attention_mean),
          wide(saved + keep.attention_rstd),
          wide(saved + keep.mlp_mean),
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
    linear_backward_weight<T>(linear(call, width_, ffn_width_), views.up_gradient, views.normed_mlp,
                              gradient(call, up_), threads);
  } else if (segment == 1) {
    const T* attention = views.split ? views.attention : saved_views(call).attention;
    linear_backward_weight<T>(linear(call, width_, width_), output_gradient(call, views), attention,
                              gradient(call, output_), threads);
  } else {
    linear_backward_weight<T>(linear(call, width_, 3 * width_), views.qkv_gradient,
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
  linear_backward_input<T>(size, down_gradient(call, views), weight(call, down_), views.up_gradient,
                           threads);
  gelu_backward<T>(size.rows * ffn_width_, saved_views(call).up, views.up_gradient, views.activated,
                   threads);
}

template <class T>
void TransformerBlock<T>::norm_up_input(const Call& call, const BackwardViews& views) const {
  const int threads = call.settings->threads;
  const SavedViews saved = saved_views(call);
  const LinearExtent size = linear(call, width_, ffn_width_);
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
  const SavedViews saved = saved_views(call);
  const int64_t tokens = call.batch->tokens, head_width = width_ / heads_;
  const DropoutSite where = site(call, DropoutPlace::kAttention);
  kernel::parallel_ranges(
      call.batch->batch * heads_, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t sequence = item / heads_, head = item % heads_, row = sequence * tokens;
          const kernel::DropoutMask mask = where.mask(sequence);
          const int64_t narrow = row * width_ + head * head_width,
                        wide = row * 3 * width_ + head * head_width;
          kernel::AttentionBackwardCall<T> item_call;
          item_call.forward = {
              .queries = tokens,
              .head_width = head_width,
              .q = saved.qkv + wide,
              .q_stride = 3 * width_,
              .k = saved.qkv + wide + width_,
              .v = saved.qkv + wide + 2 * width_,
              .kv_stride = 3 * width_,
              .out = const_cast<T*>(saved.attention) + narrow,
              .out_stride = width_,
              .log_sum_exp = const_cast<Wide<T>*>(saved.log_sum_exp) + item * tokens,
              .starts = call.batch->document_starts ? call.batch->document_starts + row : nullptr,
              .mask = &mask,
              .head = static_cast<uint64_t>(head)};
          item_call.out_gradient = views.scratch + narrow;
          item_call.out_gradient_stride = width_;
          item_call.dq = views.qkv_gradient + wide;
          item_call.dk = item_call.dq + width_;
          item_call.dv = item_call.dq + 2 * width_;
          item_call.gradient_stride = 3 * width_;
          item_call.delta = views.delta + item * tokens;
          item_call.dq_sum = views.query_sum + item * tokens * head_width;
          kernel::attention_backward(item_call);
        }
      });
}

template <class T>
void TransformerBlock<T>::norm_qkv_input(const Call& call, const BackwardViews& views) const {
  const int threads = call.settings->threads;
  const SavedViews saved = saved_views(call);
  const LinearExtent size = linear(call, width_, 3 * width_);
  const T* input = static_cast<const T*>(call.input);
  T* input_gradient = static_cast<T*>(call.input_gradient);
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
