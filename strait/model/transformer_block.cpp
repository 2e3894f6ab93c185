#include "strait/model/transformer_block.h"

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/kernel/rope.h"

namespace strait::model {
namespace {

LayerOffset layer_offset(const UnitShape& unit, const std::string& name) {
  return {unit.parameter(name + ".weight").offset, parameter_offset(unit, name + ".bias")};
}

}  // namespace

template <class T>
TransformerBlock<T>::TransformerBlock(const ModelShape& shape, int64_t index, Dtype dtype,
                                      std::shared_ptr<const RotaryAngles> angles)
    : dtype_(dtype),
      index_(index),
      width_(shape.options.width),
      ffn_width_(shape.options.ffn_width),
      heads_(shape.options.heads),
      extent_(block_extent(shape, 0, 0, dtype)),
      dropout_(shape.options.dropout),
      norm_eps_(shape.options.norm_eps),
      angles_(std::move(angles)) {
  ensure(extent_.style.rotary == (angles_ != nullptr), "a transformer block and its angles");
  const UnitShape& unit =
      shape.units[static_cast<size_t>(shape.blocks[static_cast<size_t>(index)].unit)];
  attention_norm_ = layer_offset(unit, unit.name + ".attention_norm");
  qkv_ = layer_offset(unit, unit.name + ".attention.qkv");
  output_ = layer_offset(unit, unit.name + ".attention.output");
  mlp_norm_ = layer_offset(unit, unit.name + ".mlp_norm");
  up_ = layer_offset(unit, unit.name + (extent_.style.gated ? ".mlp.gate_up" : ".mlp.up"));
  down_ = layer_offset(unit, unit.name + ".mlp.down");
}

template <class T>
BlockExtent TransformerBlock<T>::extent(const Call& call) const {
  BlockExtent size = extent_;
  size.rows = call.batch->batch * call.batch->tokens;
  return size;
}

template <class T>
LinearExtent TransformerBlock<T>::linear(const Call& call, int64_t in, int64_t out) const {
  return {call.batch->batch * call.batch->tokens, in, out};
}

template <class T>
DropoutSite TransformerBlock<T>::site(const Call& call, DropoutPlace place) const {
  return {call.settings->seed,
          place,
          static_cast<uint64_t>(index_),
          drops(call) ? dropout_ : 0.0,
          call.batch->batch,
          call.batch->tokens,
          call.position,
          call.batch->sequences};
}

template <class T>
typename TransformerBlock<T>::ForwardViews TransformerBlock<T>::forward_views(
    const Call& call) const {
  const BlockExtent size = extent(call);
  const ForwardLayout work = forward_layout(size);
  T* workspace = static_cast<T*>(call.workspace);
  ForwardViews views{};
  views.normed = workspace + work.normed;
  views.activated = workspace + work.wide;
  views.activated_stride = call.saved ? ffn_width_ : size.up_width();
  const bool centered = !size.style.rms_norm;
  if (call.saved) {
    T* saved = static_cast<T*>(call.saved);
    const SavedLayout keep = saved_layout(size);
    views.attention_mean = centered ? wide(saved + keep.attention_mean) : nullptr;
    views.attention_rstd = wide(saved + keep.attention_rstd);
    views.mlp_mean = centered ? wide(saved + keep.mlp_mean) : nullptr;
    views.mlp_rstd = wide(saved + keep.mlp_rstd);
    views.log_sum_exp = wide(saved + keep.log_sum_exp);
    views.qkv = saved + keep.qkv;
    views.attention = saved + keep.attention;
    views.middle = saved + keep.middle;
    views.up = saved + keep.up;
    return views;
  }
  Wide<T>* statistics = wide(workspace + work.statistics);
  views.attention_mean = views.mlp_mean = centered ? statistics : nullptr;
  views.attention_rstd = views.mlp_rstd = statistics + size.rows;
  views.qkv = views.up = views.activated;
  views.attention = views.normed;
  views.middle = static_cast<T*>(call.output);
  return views;
}

template <class T>
void TransformerBlock<T>::forward(const Call& call, int segment_begin, int segment_end) const {
  check_call(call, dtype_);
  const ForwardViews views = forward_views(call);
  for (int segment = segment_begin; segment < segment_end; ++segment) {
    if (segment == 0) norm_qkv(call, views);
    if (segment == 1) attend(call, views);
    if (segment == 1) attention_output(call, views);
    if (segment == 2) norm_up(call, views);
    if (segment == 3) down(call, views);
  }
}

template <class T>
void TransformerBlock<T>::forward_cached(const Call& call) const {
  check_call(call, dtype_);
  ensure(call.saved == nullptr && call.cache != nullptr,
         "forward_cached: a cache and no saved bundle");
  ensure(call.position + call.batch->tokens <= call.cache_capacity,
         "forward_cached: the cache is full");
  const ForwardViews views = forward_views(call);
  norm_qkv(call, views);
  attend_cached(call, views);
  attention_output(call, views);
  norm_up(call, views);
  down(call, views);
}

template <class T>
void TransformerBlock<T>::forward_backward(const Call&) const {
  throw InternalError("a transformer block has no forward_backward; it belongs to the head");
}

template <class T>
void TransformerBlock<T>::norm_qkv(const Call& call, const ForwardViews& views) const {
  const int threads = call.settings->threads;
  const LinearExtent size = linear(call, width_, extent_.qkv_width());
  norm_forward<T>({size.rows, width_, static_cast<const T*>(call.input),
                   weight(call, attention_norm_), bias(call, attention_norm_), views.attention_mean,
                   views.attention_rstd, views.normed, norm_eps_},
                  threads);
  linear_forward<T>(size, views.normed, weight(call, qkv_), bias(call, qkv_), views.qkv, threads);
  rotate(call, views.qkv, false);
}

template <class T>
void TransformerBlock<T>::rotate(const Call& call, T* qkv, bool back) const {
  if (!angles_) return;
  const int64_t tokens = call.batch->tokens, heads = heads_ + extent_.kv_heads;
  kernel::parallel_ranges(
      call.batch->batch * tokens, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t position = call.position + row % tokens;
          kernel::rotate<T>(
              {heads, extent_.head_width(), angles_->template cosines<Wide<T>>(position),
               angles_->template sines<Wide<T>>(position), back, qkv + row * extent_.qkv_width()});
        }
      });
}

/// Queries of `head` and the keys and values that it shares with its group, from rows of qkv.
template <class T>
kernel::AttentionCall<T> TransformerBlock<T>::attention_call(const Call& call, int64_t sequence,
                                                             int64_t head, const T* qkv) const {
  const int64_t tokens = call.batch->tokens, row = sequence * tokens;
  const int64_t head_width = extent_.head_width(), stride = extent_.qkv_width();
  const int64_t shared = head / (heads_ / extent_.kv_heads) * head_width;
  const T* first = qkv + row * stride;
  const int32_t* starts = call.batch->document_starts;
  return {.queries = tokens,
          .head_width = head_width,
          .q = first + head * head_width,
          .q_stride = stride,
          .k = first + width_ + shared,
          .v = first + width_ + extent_.kv_width() + shared,
          .kv_stride = stride,
          .starts = starts ? starts + row : nullptr,
          .head = static_cast<uint64_t>(head)};
}

template <class T>
void TransformerBlock<T>::attend(const Call& call, const ForwardViews& views) const {
  const int64_t tokens = call.batch->tokens;
  const DropoutSite where = site(call, DropoutPlace::kAttention);
  kernel::parallel_ranges(
      call.batch->batch * heads_, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t sequence = item / heads_, head = item % heads_;
          const kernel::DropoutMask mask = where.mask(sequence);
          kernel::AttentionCall<T> one = attention_call(call, sequence, head, views.qkv);
          one.out = views.attention + sequence * tokens * width_ + head * extent_.head_width();
          one.out_stride = width_;
          one.log_sum_exp = views.log_sum_exp ? views.log_sum_exp + item * tokens : nullptr;
          one.mask = &mask;
          kernel::attention(one);
        }
      });
}

// The cache is [batch][keys, values][capacity][kv_width]; keys are kept as RoPE has turned them.
template <class T>
void TransformerBlock<T>::attend_cached(const Call& call, const ForwardViews& views) const {
  const int64_t tokens = call.batch->tokens, head_width = extent_.head_width();
  const int64_t kv_width = extent_.kv_width(), plane = call.cache_capacity * kv_width;
  T* cache = static_cast<T*>(call.cache);
  for (int64_t row = 0; row < call.batch->batch * tokens; ++row) {
    const T* keys = views.qkv + row * extent_.qkv_width() + width_;
    T* to = cache + row / tokens * 2 * plane + (call.position + row % tokens) * kv_width;
    std::copy_n(keys, kv_width, to);
    std::copy_n(keys + kv_width, kv_width, to + plane);
  }
  kernel::parallel_ranges(
      call.batch->batch * heads_, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t sequence = item / heads_, head = item % heads_;
          const int64_t shared = head / (heads_ / extent_.kv_heads) * head_width;
          kernel::AttentionCall<T> one = attention_call(call, sequence, head, views.qkv);
          one.first = call.position;
          one.k = cache + sequence * 2 * plane + shared;
          one.v = one.k + plane;
          one.kv_stride = kv_width;
          one.out = views.attention + sequence * tokens * width_ + head * head_width;
          one.out_stride = width_;
          one.starts = nullptr;
          kernel::attention(one);
        }
      });
}

template <class T>
void TransformerBlock<T>::add_branch(const Call& call, const Branch& branch) const {
  const int threads = call.settings->threads;
  const T* matrix = weight(call, *branch.layer);
  const T* shift = bias(call, *branch.layer);
  if (!drops(call)) {
    linear_forward_add<T>(branch.extent, branch.x, matrix, shift, branch.base, branch.target,
                          threads);
    return;
  }
  T* value = branch.target == branch.base ? branch.scratch : branch.target;
  linear_forward<T>(branch.extent, branch.x, matrix, shift, value, threads);
  drop<T>(site(call, branch.place), branch.extent.out, value, branch.base, branch.target, threads);
}

template <class T>
void TransformerBlock<T>::attention_output(const Call& call, const ForwardViews& views) const {
  add_branch(call, {linear(call, width_, width_), &output_, DropoutPlace::kAttentionOutput,
                    views.attention, static_cast<const T*>(call.input), views.middle, nullptr});
}

template <class T>
void TransformerBlock<T>::norm_up(const Call& call, const ForwardViews& views) const {
  const int threads = call.settings->threads;
  const LinearExtent size = linear(call, width_, extent_.up_width());
  norm_forward<T>({size.rows, width_, views.middle, weight(call, mlp_norm_), bias(call, mlp_norm_),
                   views.mlp_mean, views.mlp_rstd, views.normed, norm_eps_},
                  threads);
  linear_forward<T>(size, views.normed, weight(call, up_), bias(call, up_), views.up, threads);
}

template <class T>
void TransformerBlock<T>::down(const Call& call, const ForwardViews& views) const {
  LinearExtent size = linear(call, ffn_width_, width_);
  const int threads = call.settings->threads;
  if (extent_.style.gated) {
    size.input_stride = views.activated_stride;
    swiglu_forward<T>({size.rows, ffn_width_, views.up, views.activated, views.activated_stride},
                      threads);
  } else {
    gelu_forward<T>(size.rows * ffn_width_, views.up, views.activated, threads);
  }
  add_branch(call, {size, &down_, DropoutPlace::kMlpOutput, views.activated, views.middle,
                    static_cast<T*>(call.output), views.normed});
}

template class TransformerBlock<float>;
template class TransformerBlock<double>;
template class TransformerBlock<Bfloat16>;

std::unique_ptr<Block> make_transformer_block(const ModelShape& shape, int64_t index, Dtype dtype,
                                              std::shared_ptr<const RotaryAngles> angles) {
  if (dtype == Dtype::kFloat64)
    return std::make_unique<TransformerBlock<double>>(shape, index, dtype, std::move(angles));
  if (dtype == Dtype::kBfloat16)
    return std::make_unique<TransformerBlock<Bfloat16>>(shape, index, dtype, std::move(angles));
  return std::make_unique<TransformerBlock<float>>(shape, index, dtype, std::move(angles));
}

}  // namespace strait::model
