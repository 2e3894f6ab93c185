// Backward of the segments: gradients of their inputs and of their parameters.
#include <algorithm>

#include "strait/base/errors.h"
#include "strait/model/transformer_segments.h"

namespace strait::model {

using enum BlockValue;

template <class T>
LinearGradient<T> TransformerSegments<T>::gradient(const SegmentCall& call,
                                                   const LayerOffset& layer) const {
  return {at_offset<Wide<T>>(call.gradient, layer.weight),
          at_offset<Wide<T>>(call.gradient, layer.bias), call.accumulate};
}

template <class T>
void TransformerSegments<T>::backward_input(const SegmentCall& call, SegmentRange range) const {
  const SegmentCall whole = complete(call, range, Phase::kBackwardInput);
  for (int segment = range.end - 1; segment >= range.begin; --segment)
    run_backward_input(whole, static_cast<Segment>(segment));
}

template <class T>
void TransformerSegments<T>::backward_weight(const SegmentCall& call, SegmentRange range) const {
  const SegmentCall whole = complete(call, range, Phase::kBackwardWeight);
  for (int segment = range.end - 1; segment >= range.begin; --segment)
    run_backward_weight(whole, static_cast<Segment>(segment));
}

template <class T>
void TransformerSegments<T>::run_backward_input(const SegmentCall& call, Segment segment) const {
  switch (segment) {
    case Segment::kAttentionMoments:
      return normalize_input(call, attention_norm_);
    case Segment::kAttentionNorm:
      return sum_moments(call, kAttentionGradientMoments,
                         norm_backward_call(call, attention_norm_));
    case Segment::kQkvAdd:
      take_key_gradient(call);
      rotate(call, kQkvGradient, true);
      return query_key_input(call);
    case Segment::kQkv:
      return begin_branch_input(call, qkv_, attention_norm_);
    case Segment::kAttention:
      return attend_input(call);
    case Segment::kOutput:
      return output_input(call);
    case Segment::kAttentionBranch:
      return add_input(call, attention_add_);
    case Segment::kAttentionAdd:
      return sum_moments(call, attention_add_.gradient_moments,
                         norm_backward_call(call, attention_add_));
    case Segment::kMlpMoments:
      return normalize_input(call, mlp_norm_);
    case Segment::kMlpNorm:
      return sum_moments(call, kMlpGradientMoments, norm_backward_call(call, mlp_norm_));
    case Segment::kUp:
      return begin_branch_input(call, up_, mlp_norm_);
    case Segment::kUpAdd:
      return up_add_input(call);
    case Segment::kDown:
      return down_input(call);
    case Segment::kMlpBranch:
      return add_input(call, mlp_add_);
    case Segment::kMlpAdd:
      return sum_moments(call, mlp_add_.gradient_moments, norm_backward_call(call, mlp_add_));
  }
}

template <class T>
void TransformerSegments<T>::run_backward_weight(const SegmentCall& call, Segment segment) const {
  switch (segment) {
    case Segment::kAttentionMoments:
      return normalize_weight(call, attention_norm_);
    case Segment::kQkv:
      return linear_weight(call, qkv_, true);
    case Segment::kQkvAdd:
      return query_key_weight(call);
    case Segment::kOutput:
      return linear_weight(call, output_, false);
    case Segment::kAttentionBranch:
      return add_weight(call, attention_add_);
    case Segment::kMlpMoments:
      return normalize_weight(call, mlp_norm_);
    case Segment::kUp:
      return linear_weight(call, up_, true);
    case Segment::kDown:
      return linear_weight(call, down_, false);
    case Segment::kMlpBranch:
      return add_weight(call, mlp_add_);
    case Segment::kAttentionNorm:
    case Segment::kAttention:
    case Segment::kAttentionAdd:
    case Segment::kMlpNorm:
    case Segment::kUpAdd:
    case Segment::kMlpAdd:
      return;
  }
}

/// Masked by dropout, or copied unless both are one.
template <class T>
void TransformerSegments<T>::add_input(const SegmentCall& call, const Add& add) const {
  if (add.norm >= 0) return normalize_branch_input(call, add);
  const T* from = at(call, add.target_gradient);
  T* to = at(call, add.sum_gradient);
  if (drops(call)) {
    drop<T>(site(call, add.place), {extent_.width, from, nullptr, to}, call.settings->threads);
  } else if (to != from) {
    std::copy_n(from, extent(call).own_rows() * extent_.width, to);
  }
}

template <class T>
void TransformerSegments<T>::down_input(const SegmentCall& call) const {
  T* sum = at(call, kActivatedGradient);
  T* gradient = sum ? sum : at(call, extent_.style.gated ? kActivated : kUpGradient);
  linear_backward_input<T>(size(call, down_), at(call, kDownSumGradient),
                           parameter(call, down_.layer.weight), gradient, call.settings->threads);
  if (!sum) activate_input(call);
}

/// Nothing where the product has done it.
template <class T>
void TransformerSegments<T>::up_add_input(const SegmentCall& call) const {
  const T* sum = at(call, kActivatedGradient);
  if (!sum) return;
  std::copy_n(sum, extent(call).rows * extent_.ffn_width,
              at(call, extent_.style.gated ? kActivated : kUpGradient));
  activate_input(call);
}

template <class T>
void TransformerSegments<T>::activate_input(const SegmentCall& call) const {
  const int threads = call.settings->threads;
  T *activated = at(call, kActivated), *up_gradient = at(call, kUpGradient);
  const int64_t rows = extent(call).rows, width = extent_.ffn_width;
  if (extent_.style.gated) {
    swiglu_backward<T>({rows, width, at(call, kUp), activated, up_gradient, gate()}, threads);
  } else {
    gelu_backward<T>(rows * width, at(call, kUp), up_gradient, activated, threads);
  }
}

template <class T>
kernel::LayerNormBackwardCall<T> TransformerSegments<T>::norm_backward_call(
    const SegmentCall& call, const Norm& norm) const {
  return {extent(call).own_rows(),   extent_.width,
          at(call, norm.x),          wide(call, norm.mean),
          wide(call, norm.rstd),     parameter(call, norm.layer.weight),
          at(call, norm.y_gradient), at(call, norm.residual_gradient),
          at(call, norm.x_gradient), norm_from_};
}

template <class T>
kernel::LayerNormBackwardCall<T> TransformerSegments<T>::norm_backward_call(const SegmentCall& call,
                                                                            const Add& add) const {
  return {.rows = extent(call).own_rows(),
          .columns = extent_.width,
          .x = at(call, add.branch),
          .rstd = wide(call, add.rstd),
          .weight = parameter(call, add.norm),
          .gradient = at(call, add.target_gradient),
          .out = at(call, add.sum_gradient),
          .from = norm_from_};
}

template <class T>
void TransformerSegments<T>::sum_moments(const SegmentCall& call, BlockValue value,
                                         const kernel::LayerNormBackwardCall<T>& norm) const {
  if (call[value]) gradient_moments<T>(norm, exact(call, value), call.settings->threads);
}

template <class T>
void TransformerSegments<T>::normalize_backward(const SegmentCall& call,
                                                const kernel::LayerNormBackwardCall<T>& norm,
                                                BlockValue moments,
                                                const LinearGradient<T>& target) const {
  const int threads = call.settings->threads;
  if (!call[moments]) return norm_backward<T>(norm, target, threads);
  norm_backward_from_moments<T>(norm, extent_.whole_width(), exact(call, moments), target, threads);
}

/// The gradient of the product's input, a part of the sum over x, and that input again.
template <class T>
void TransformerSegments<T>::begin_branch_input(const SegmentCall& call, const Linear& linear,
                                                const Norm& norm) const {
  linear_backward_input<T>(size(call, linear), at(call, linear.y_gradient),
                           parameter(call, linear.layer.weight), at(call, linear.x_gradient),
                           call.settings->threads);
  if (extent_.row_split == 1) normalize_again(call, norm);
}

template <class T>
void TransformerSegments<T>::normalize_again(const SegmentCall& call, Segment norm) const {
  check_call(call, dtype_);
  normalize_again(call, norm == Segment::kMlpNorm ? mlp_norm_ : attention_norm_);
}

template <class T>
void TransformerSegments<T>::normalize_again(const SegmentCall& call, const Norm& norm) const {
  if (!extent_.style.norm_before) return pass_on(call, norm);
  norm_again<T>(norm_call(call, norm), call.settings->threads);
}

template <class T>
void TransformerSegments<T>::normalize_input(const SegmentCall& call, const Norm& norm) const {
  if (!extent_.style.norm_before)
    return add_values<T>(extent(call).own_rows() * extent_.width, at(call, norm.y_gradient),
                         at(call, norm.residual_gradient), at(call, norm.x_gradient),
                         call.settings->threads);
  Wide<T>* place = wide(call, norm.layer_gradient);
  ensure(place != nullptr || call.gradient != nullptr, "segments: no gradient of a norm");
  const LinearGradient<T> target =
      place ? LinearGradient<T>{place, place + extent_.width, false} : gradient(call, norm.layer);
  normalize_backward(call, norm_backward_call(call, norm), norm.gradient_moments, target);
}

template <class T>
void TransformerSegments<T>::normalize_branch_input(const SegmentCall& call, const Add& add) const {
  Wide<T>* place = wide(call, add.norm_gradient);
  ensure(place != nullptr || call.gradient != nullptr, "segments: no gradient of a norm");
  const LinearGradient<T> target =
      place ? LinearGradient<T>{place, nullptr, false} : gradient(call, {add.norm, -1});
  normalize_backward(call, norm_backward_call(call, add), add.gradient_moments, target);
}

/// From the gradients of what RoPE was given to those of what the product made, in place.
template <class T>
void TransformerSegments<T>::query_key_input(const SegmentCall& call) const {
  if (!extent_.norms_query_key()) return;
  const int64_t width = extent_.query_key_width(), norms = extent_.query_key_norms();
  const T* raw = at(call, kRawQueryKey);
  T* gradients = at(call, kQkvGradient);
  const auto normalize_row = [&](int64_t row, const QueryKeyNorms& part) {
    T* gradient = gradients + row * extent_.qkv_width() + part.first;
    kernel::layer_norm_backward<T>({.rows = part.count,
                                    .columns = part.width,
                                    .x = raw + row * width + part.first,
                                    .rstd = wide(call, kQueryKeyRstd) + row * norms + part.rstd,
                                    .weight = parameter(call, part.weight),
                                    .gradient = gradient,
                                    .out = gradient,
                                    .from = norm_from_});
  };
  for (const QueryKeyNorms& part : query_key_) {
    query_key_parameters(call, part);
    kernel::parallel_ranges(extent(call).rows, 1, call.settings->threads,
                            [&](int64_t begin, int64_t end) {
                              for (int64_t row = begin; row < end; ++row) normalize_row(row, part);
                            });
  }
}

/// The gradient of one weight: the sum over rows, and over the heads of a row.
template <class T>
void TransformerSegments<T>::query_key_parameters(const SegmentCall& call,
                                                  const QueryKeyNorms& part) const {
  Wide<T>* place = wide(call, kQueryKeyNormGradient);
  ensure(place != nullptr || call.gradient != nullptr, "segments: no gradient of a norm");
  Wide<T>* to = place ? place + part.gradient : at_offset<Wide<T>>(call.gradient, part.weight);
  const bool begun = place == nullptr && call.accumulate;
  const int64_t rows = extent(call).rows, width = extent_.query_key_width();
  const T *raw = at(call, kRawQueryKey), *gradients = at(call, kQkvGradient);
  const Wide<T>* rstd = wide(call, kQueryKeyRstd) + part.rstd;
  kernel::parallel_ranges(part.width, 64, call.settings->threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; ++row)
      kernel::layer_norm_parameters<T>(
          {part.count, part.width, begin, end, raw + row * width + part.first, nullptr,
           rstd + row * extent_.query_key_norms(),
           gradients + row * extent_.qkv_width() + part.first, to, nullptr, begun || row > 0});
  });
}

template <class T>
void TransformerSegments<T>::output_input(const SegmentCall& call) const {
  linear_backward_input<T>(size(call, output_), at(call, kOutputSumGradient),
                           parameter(call, output_.layer.weight), at(call, kAttentionGradient),
                           call.settings->threads);
  T* kept = at(call, kKeptAttention);
  if (kept && kept != at(call, kAttention))
    std::copy_n(at(call, kAttention), value_elements(kAttention, extent(call)), kept);
}

template <class T>
void TransformerSegments<T>::attend_input(const SegmentCall& call) const {
  if (call[kGatheredKeys]) return attend_gathered_input(call);
  const int64_t kv_heads = extent_.kv_heads, group = extent_.heads / kv_heads;
  kernel::parallel_ranges(call.batch->batch * kv_heads, 1, call.settings->threads,
                          [&](int64_t begin, int64_t end) {
                            for (int64_t item = begin; item < end; ++item)
                              attend_input_group(call, item / kv_heads, item % kv_heads * group);
                          });
}

/// The heads from `head` on that share keys and values.
template <class T>
void TransformerSegments<T>::attend_input_group(const SegmentCall& call, int64_t sequence,
                                                int64_t head) const {
  const int64_t tokens = call.batch->tokens, stride = extent_.qkv_width();
  const int64_t width = extent_.attention_width(), head_width = extent_.head_width;
  const int64_t group = extent_.heads / extent_.kv_heads;
  const int64_t rows = (sequence * extent_.heads + head) * tokens;
  const kernel::DropoutMask mask = site(call, DropoutPlace::kAttention).mask(sequence);
  kernel::AttentionBackwardCall<T> shared;
  shared.forward = attention_call(call, sequence, head);
  shared.forward.mask = &mask;
  shared.out_gradient =
      at(call, kAttentionGradient) + sequence * tokens * width + head * head_width;
  shared.out_gradient_stride = width;
  T* gradient = at(call, kQkvGradient) + sequence * tokens * stride;
  shared.dq = gradient + head * head_width;
  shared.dk = gradient + width + head / group * head_width;
  shared.dv = shared.dk + extent_.kv_width();
  shared.gradient_stride = stride;
  shared.delta = wide(call, kDelta) + rows;
  if (call[kQuerySum]) shared.dq_sum = wide(call, kQuerySum) + rows * head_width;
  shared.group = group;
  kernel::attention_backward(shared);
}

template <class T>
void TransformerSegments<T>::linear_weight(const SegmentCall& call, const Linear& linear,
                                           bool bias) const {
  LinearGradient<T> target = gradient(call, linear.layer);
  if (!bias) target.bias = nullptr;  // the add's
  linear_backward_weight<T>(size(call, linear), at(call, linear.y_gradient),
                            at(call, linear.kept_x), target, call.settings->threads);
}

template <class T>
void TransformerSegments<T>::add_weight(const SegmentCall& call, const Add& add) const {
  bias_backward<T>(extent(call).rows, extent_.width, at(call, add.sum_gradient),
                   {nullptr, at_offset<Wide<T>>(call.gradient, add.bias), call.accumulate},
                   call.settings->threads);
  if (const Wide<T>* from = wide(call, add.norm_gradient)) put(call, from, extent_.width, add.norm);
}

template <class T>
void TransformerSegments<T>::query_key_weight(const SegmentCall& call) const {
  const Wide<T>* from = wide(call, kQueryKeyNormGradient);
  for (const QueryKeyNorms& part : query_key_)
    if (from) put(call, from + part.gradient, part.width, part.weight);
}

template <class T>
void TransformerSegments<T>::put(const SegmentCall& call, const Wide<T>* values, int64_t count,
                                 int64_t offset) const {
  Wide<T>* to = at_offset<Wide<T>>(call.gradient, offset);
  for (int64_t c = 0; to && c < count; ++c) to[c] = call.accumulate ? to[c] + values[c] : values[c];
}

template <class T>
void TransformerSegments<T>::normalize_weight(const SegmentCall& call, const Norm& norm) const {
  const Wide<T>* from = wide(call, norm.layer_gradient);
  if (!from) return;
  put(call, from, extent_.width, norm.layer.weight);
  put(call, from + extent_.width, extent_.width, norm.layer.bias);
}

template class TransformerSegments<float>;
template class TransformerSegments<double>;
template class TransformerSegments<Bfloat16>;

}  // namespace strait::model
