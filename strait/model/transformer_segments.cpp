// Forward of the segments, and how a call finds its buffers. The backward:
// transformer_backward.cpp.
#include "strait/model/transformer_segments.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/kernel/rope.h"

namespace strait::model {
namespace {

using enum BlockValue;

/// -1 for what the family does not have.
LayerOffset layer_offset(const UnitShape& unit, const std::string& name) {
  return {parameter_offset(unit, name + ".weight"), parameter_offset(unit, name + ".bias")};
}

const UnitShape& unit_of(const ModelShape& shape, int64_t index) {
  return shape.units[static_cast<size_t>(shape.blocks[static_cast<size_t>(index)].unit)];
}

}  // namespace

template <class T>
TransformerSegments<T>::TransformerSegments(const ModelShape& shape, int64_t index, Dtype dtype,
                                            std::shared_ptr<const RotaryAngles> angles)
    : dtype_(dtype),
      index_(index),
      extent_(block_extent(shape, 0, 0, dtype)),
      dropout_(shape.options.dropout),
      norm_eps_(shape.options.norm_eps),
      norm_from_(shape.style.norm_from_one ? 1 : 0),
      window_(layer_form(shape, index).window),
      scale_(shape.options.score_scale()),
      cap_(shape.options.score_cap),
      angles_(std::move(angles)) {
  ensure(extent_.style.rotary == (angles_ != nullptr), "a transformer block and its angles");
  const UnitShape& unit = unit_of(shape, index);
  find_attention(unit);
  find_query_key_norms(unit);
  find_mlp(unit);
}

template <class T>
void TransformerSegments<T>::find_attention(const UnitShape& unit) {
  const auto layer = [&](const char* name) { return layer_offset(unit, unit.name + name); };
  const LayerOffset output = layer(".attention.output");
  const int64_t width = extent_.width;
  attention_norm_ = {layer(".attention_norm"), kInput,
                     kAttentionMean,           kAttentionRstd,
                     kNormedAttention,         kNormedAttentionGradient,
                     kMiddleGradient,          kInputGradient,
                     kAttentionNormGradient,   kAttentionMoments,
                     kAttentionGradientMoments};
  qkv_ = {layer(".attention.qkv"),
          width,
          extent_.qkv_width(),
          kNormedAttention,
          kQkv,
          kQkvGradient,
          kNormedAttentionGradient,
          kNormedAttention,
          kQkvSum};
  output_ = {output,
             extent_.attention_width(),
             width,
             kAttention,
             kOutputSum,
             kOutputSumGradient,
             kAttentionGradient,
             kKeptAttention,
             kOutputSum};
  attention_add_ = {output.bias,
                    DropoutPlace::kAttentionOutput,
                    kOutputSum,
                    kInput,
                    kMiddle,
                    kMiddleGradient,
                    kOutputSumGradient,
                    kAttentionBranch,
                    kAttentionBranchRstd,
                    kAttentionBranchGradient,
                    kAttentionBranchMoments,
                    kAttentionBranchGradientMoments,
                    layer(".attention_post_norm").weight};
}

template <class T>
void TransformerSegments<T>::find_mlp(const UnitShape& unit) {
  const auto layer = [&](const char* name) { return layer_offset(unit, unit.name + name); };
  const LayerOffset down = layer(".mlp.down");
  const int64_t width = extent_.width;
  mlp_norm_ = {layer(".mlp_norm"), kMiddle,         kMlpMean,        kMlpRstd,         kNormedMlp,
               kNormedMlpGradient, kOutputGradient, kMiddleGradient, kMlpNormGradient, kMlpMoments,
               kMlpGradientMoments};
  up_ = {layer(extent_.style.gated ? ".mlp.gate_up" : ".mlp.up"),
         width,
         extent_.up_width(),
         kNormedMlp,
         kUp,
         kUpGradient,
         kNormedMlpGradient,
         kNormedMlp,
         kUpSum};
  down_ = {down,
           extent_.ffn_width,
           width,
           kActivated,
           kDownSum,
           kDownSumGradient,
           kActivatedGradient,
           kActivated,
           kDownSum};
  mlp_add_ = {down.bias,
              DropoutPlace::kMlpOutput,
              kDownSum,
              kMiddle,
              kOutput,
              kOutputGradient,
              kDownSumGradient,
              kMlpBranch,
              kMlpBranchRstd,
              kMlpBranchGradient,
              kMlpBranchMoments,
              kMlpBranchGradientMoments,
              layer(".mlp_post_norm").weight};
}

template <class T>
void TransformerSegments<T>::find_query_key_norms(const UnitShape& unit) {
  const auto layer = [&](const char* name) { return layer_offset(unit, unit.name + name); };
  const bool apart = extent_.style.query_key_norm == QueryKeyNorm::kHead;
  const int64_t queries = apart ? extent_.heads : 1, keys = apart ? extent_.kv_heads : 1;
  const int64_t query_width = extent_.attention_width() / queries;
  query_key_[0] = {layer(".attention.query_norm").weight, 0, queries, query_width, 0, 0};
  query_key_[1] = {layer(".attention.key_norm").weight,
                   extent_.attention_width(),
                   keys,
                   extent_.kv_width() / keys,
                   queries,
                   query_width};
}

template <class T>
BlockExtent TransformerSegments<T>::extent(const SegmentCall& call) const {
  BlockExtent size = extent_;
  size.rows = call.batch->batch * call.batch->tokens;
  return size;
}

template <class T>
DropoutSite TransformerSegments<T>::site(const SegmentCall& call, DropoutPlace place) const {
  return {call.settings->seed,
          place,
          static_cast<uint64_t>(index_),
          drops(call) ? dropout_ : 0.0,
          call.batch->batch,
          call.batch->share(),
          call.position,
          call.batch->sequences,
          call.first_column,
          extent_.whole_width(),
          {call.first_row, extent(call).own_rows()}};
}

template <class T>
SegmentCall TransformerSegments<T>::complete(const SegmentCall& call, SegmentRange range,
                                             Phase phase) const {
  check_call(call, dtype_);
  ensure(0 <= range.begin && range.begin < range.end && range.end <= kNumSegments,
         "segments: an empty range");
  const BlockExtent size = extent(call);
  const ValueSet given = call.given(),
                 reads = range_uses(range, phase, true, extent_.row_split > 1).reads;
  // Without a place the gradients of norms are in the unit's gradient already.
  const ValueSet optional =
      value_set({kAttentionNormGradient, kMlpNormGradient, kAttentionBranchGradient,
                 kMlpBranchGradient, kQueryKeyNormGradient});
  for (size_t index = 0; index < reads.size(); ++index) {
    const auto value = static_cast<BlockValue>(index);
    if (reads[index] && !given[index] && !optional[index] && value_elements(value, size) > 0)
      throw InternalError(fmt::format(
          "segments {} to {}: {} is missing", segment_name(static_cast<Segment>(range.begin)),
          segment_name(static_cast<Segment>(range.end - 1)), value_name(value)));
  }
  const ValueOffsets offsets = workspace_offsets(size, range, phase, given);
  ensure(offsets.elements == 0 || call.workspace != nullptr, "segments: no workspace");
  SegmentCall complete = call;
  complete.give(offsets, call.workspace, dtype_);
  for (int value = 0; value < kNumBlockValues; ++value)
    if (value_elements(static_cast<BlockValue>(value), size) == 0)
      complete.give(static_cast<BlockValue>(value), nullptr);
  return complete;
}

template <class T>
void TransformerSegments<T>::forward(const SegmentCall& call, SegmentRange range) const {
  const SegmentCall whole = complete(call, range, Phase::kForward);
  for (int segment = range.begin; segment < range.end; ++segment)
    run_forward(whole, static_cast<Segment>(segment));
}

template <class T>
void TransformerSegments<T>::run_forward(const SegmentCall& call, Segment segment) const {
  switch (segment) {
    case Segment::kAttentionMoments:
      return sum_moments(call, kAttentionMoments, kInput, !extent_.style.rms_norm);
    case Segment::kAttentionNorm:
      return normalize(call, attention_norm_);
    case Segment::kQkv:
      return begin_branch(call, qkv_);
    case Segment::kQkvAdd:
      add_bias(call, qkv_);
      normalize_query_key(call);
      return rotate(call, kQkv, false);
    case Segment::kAttention:
      return attend(call);
    case Segment::kOutput:
      return end_branch(call, output_, attention_add_);
    case Segment::kAttentionBranch:
      return keep_branch(call, attention_add_);
    case Segment::kAttentionAdd:
      return add(call, attention_add_);
    case Segment::kMlpMoments:
      return sum_moments(call, kMlpMoments, kMiddle, !extent_.style.rms_norm);
    case Segment::kMlpNorm:
      return normalize(call, mlp_norm_);
    case Segment::kUp:
      return begin_branch(call, up_);
    case Segment::kUpAdd:
      return add_bias(call, up_);
    case Segment::kDown:
      activate(call);
      return end_branch(call, down_, mlp_add_);
    case Segment::kMlpBranch:
      return keep_branch(call, mlp_add_);
    case Segment::kMlpAdd:
      return add(call, mlp_add_);
  }
}

template <class T>
kernel::LayerNormCall<T> TransformerSegments<T>::norm_call(const SegmentCall& call,
                                                           const Norm& norm) const {
  return {extent(call).own_rows(),
          extent_.width,
          at(call, norm.x),
          parameter(call, norm.layer.weight),
          parameter(call, norm.layer.bias),
          wide(call, norm.mean),
          wide(call, norm.rstd),
          at(call, norm.y),
          norm_eps_,
          nullptr,
          norm_from_};
}

template <class T>
kernel::LayerNormCall<T> TransformerSegments<T>::norm_call(const SegmentCall& call,
                                                           const Add& add) const {
  return {.rows = extent(call).own_rows(),
          .columns = extent_.width,
          .x = at(call, add.branch),
          .weight = parameter(call, add.norm),
          .rstd = wide(call, add.rstd),
          .out = at(call, add.target),
          .epsilon = norm_eps_,
          .base = at(call, add.base),
          .from = norm_from_};
}

template <class T>
void TransformerSegments<T>::sum_moments(const SegmentCall& call, BlockValue value, BlockValue x,
                                         bool centered) const {
  if (call[value])
    row_moments<T>(extent(call).own_rows(), extent_.width, at(call, x), centered,
                   exact(call, value), call.settings->threads);
}

template <class T>
void TransformerSegments<T>::normalize(const SegmentCall& call,
                                       const kernel::LayerNormCall<T>& norm,
                                       BlockValue moments) const {
  const int threads = call.settings->threads;
  if (!call[moments]) return norm_forward<T>(norm, threads);
  norm_from_moments<T>(norm, extent_.whole_width(), exact(call, moments), threads);
}

template <class T>
void TransformerSegments<T>::pass_on(const SegmentCall& call, const Norm& norm) const {
  if (at(call, norm.x) != at(call, norm.y))
    std::copy_n(at(call, norm.x), extent(call).own_rows() * extent_.width, at(call, norm.y));
}

template <class T>
void TransformerSegments<T>::normalize(const SegmentCall& call, const Norm& norm) const {
  if (!extent_.style.norm_before) return pass_on(call, norm);
  normalize(call, norm_call(call, norm), norm.moments);
}

template <class T>
void TransformerSegments<T>::begin_branch(const SegmentCall& call, const Linear& linear) const {
  if (Wide<T>* sum = wide(call, linear.sum))
    return linear_forward<T>(size(call, linear),
                             {at(call, linear.x), parameter(call, linear.layer.weight), nullptr},
                             sum, call.settings->threads);
  linear_forward<T>(size(call, linear),
                    {at(call, linear.x), parameter(call, linear.layer.weight),
                     parameter(call, linear.layer.bias)},
                    at(call, linear.y), call.settings->threads);
}

/// Nothing where the product has added it.
template <class T>
void TransformerSegments<T>::add_bias(const SegmentCall& call, const Linear& linear) const {
  if (!call[linear.sum]) return;
  add_sum<T>({extent(call).rows, linear.out, wide(call, linear.sum),
              parameter(call, linear.layer.bias), nullptr, at(call, linear.y)},
             call.settings->threads);
}

/// The raw sum, or, where it has no place, all of `add` up to a norm behind it.
template <class T>
void TransformerSegments<T>::end_branch(const SegmentCall& call, const Linear& linear,
                                        const Add& add) const {
  if (!call[add.sum]) return add_joined(call, linear, add);
  LinearExtent extent = size(call, linear);
  if (linear.x == kActivated) extent.input_stride = activated_stride(call);
  linear_forward<T>(extent, {at(call, linear.x), parameter(call, linear.layer.weight), nullptr},
                    wide(call, add.sum), call.settings->threads);
}

template <class T>
void TransformerSegments<T>::add_joined(const SegmentCall& call, const Linear& linear,
                                        const Add& add) const {
  const int threads = call.settings->threads;
  LinearExtent extent = size(call, linear);
  if (linear.x == kActivated) extent.input_stride = activated_stride(call);
  const LinearInput<T> input{at(call, linear.x), parameter(call, linear.layer.weight),
                             parameter(call, add.bias)};
  const T* base = at(call, add.base);
  T* target = at(call, add.target);
  if (add.norm >= 0) {
    linear_forward<T>(extent, input, at(call, add.branch), threads);
    return;
  }
  if (!drops(call)) {
    linear_forward_add<T>(extent, input, base, target, threads);
    return;
  }
  T* value = target == base ? at(call, kNormedMlp) : target;
  ensure(value != nullptr, "segments: dropout cannot add in place");
  linear_forward<T>(extent, input, value, threads);
  drop<T>(site(call, add.place), {linear.out, value, base, target}, threads);
}

template <class T>
void TransformerSegments<T>::keep_branch(const SegmentCall& call, const Add& add) const {
  if (add.norm < 0) return;
  if (call[add.sum])
    add_sum<T>({extent(call).own_rows(), extent_.width, wide(call, add.sum),
                parameter(call, add.bias), nullptr, at(call, add.branch)},
               call.settings->threads);
  sum_moments(call, add.moments, add.branch, false);
}

template <class T>
void TransformerSegments<T>::add(const SegmentCall& call, const Add& add) const {
  if (add.norm >= 0) return normalize(call, norm_call(call, add), add.moments);
  if (!call[add.sum]) return;  // joined
  const int threads = call.settings->threads;
  const T* base = at(call, add.base);
  T* target = at(call, add.target);
  const bool dropping = drops(call);
  ensure(!dropping || target != base, "segments: dropout cannot add in place");
  add_sum<T>({extent(call).own_rows(), extent_.width, wide(call, add.sum),
              parameter(call, add.bias), dropping ? nullptr : base, target},
             threads);
  if (dropping) drop<T>(site(call, add.place), {extent_.width, target, base, target}, threads);
}

/// In place; what the product made is kept where it has a place.
template <class T>
void TransformerSegments<T>::normalize_query_key(const SegmentCall& call) const {
  if (!extent_.norms_query_key()) return;
  const int64_t width = extent_.query_key_width(), norms = extent_.query_key_norms();
  T *rows = at(call, kQkv), *raw = at(call, kRawQueryKey);
  const auto normalize_row = [&](int64_t row) {
    T* x = rows + row * extent_.qkv_width();
    if (raw) std::copy_n(x, width, raw + row * width);
    for (const QueryKeyNorms& part : query_key_)
      kernel::layer_norm<T>({.rows = part.count,
                             .columns = part.width,
                             .x = x + part.first,
                             .weight = parameter(call, part.weight),
                             .rstd = wide(call, kQueryKeyRstd) + row * norms + part.rstd,
                             .out = x + part.first,
                             .epsilon = norm_eps_,
                             .from = norm_from_});
  };
  kernel::parallel_ranges(extent(call).rows, 1, call.settings->threads,
                          [&](int64_t begin, int64_t end) {
                            for (int64_t row = begin; row < end; ++row) normalize_row(row);
                          });
}

/// Turns queries and keys, or their gradients back, by the angles of their positions.
template <class T>
void TransformerSegments<T>::rotate(const SegmentCall& call, BlockValue qkv, bool back) const {
  if (!angles_) return;
  T* rows = at(call, qkv);
  const int64_t tokens = call.batch->tokens, heads = extent_.heads + extent_.kv_heads;
  kernel::parallel_ranges(
      call.batch->batch * tokens, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t position = call.position + call.batch->position(row);
          kernel::rotate<T>(
              {heads, extent_.head_width, angles_->template cosines<Wide<T>>(position),
               angles_->template sines<Wide<T>>(position), back, rows + row * extent_.qkv_width()});
        }
      });
}

template <class T>
kernel::AttentionCall<T> TransformerSegments<T>::attention_call(const SegmentCall& call,
                                                                int64_t sequence,
                                                                int64_t head) const {
  const int64_t tokens = call.batch->tokens, row = sequence * tokens;
  const int64_t head_width = extent_.head_width, stride = extent_.qkv_width();
  const int64_t width = extent_.attention_width();
  const int64_t shared = head / (extent_.heads / extent_.kv_heads) * head_width;
  const T* first = at(call, kQkv) + row * stride;
  const int32_t* starts = call.batch->document_starts;
  Wide<T>* sums = wide(call, kLogSumExp);
  T* out = at(call, kAttention);  // null: heads' deltas have come from the ranks that have theirs
  return {.queries = tokens,
          .head_width = head_width,
          .window = window_,
          .q = first + head * head_width,
          .q_stride = stride,
          .k = first + width + shared,
          .v = first + width + extent_.kv_width() + shared,
          .kv_stride = stride,
          .out = out ? out + row * width + head * head_width : nullptr,
          .out_stride = width,
          .log_sum_exp = sums ? sums + (sequence * extent_.heads + head) * tokens : nullptr,
          .starts = starts ? starts + row : nullptr,
          .head = static_cast<uint64_t>(call.first_head + head),
          .products = call.settings->products,
          .scale = scale_,
          .cap = cap_};
}

template <class T>
void TransformerSegments<T>::attend(const SegmentCall& call) const {
  ensure(call.position == 0, "segments: attention needs the sequence from its first token on");
  if (call[kGatheredKeys]) return attend_gathered(call);
  const DropoutSite where = site(call, DropoutPlace::kAttention);
  const int64_t heads = extent_.heads;
  kernel::parallel_ranges(
      call.batch->batch * heads, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const kernel::DropoutMask mask = where.mask(item / heads);
          kernel::AttentionCall<T> one = attention_call(call, item / heads, item % heads);
          one.mask = &mask;
          kernel::attention(one);
        }
      });
}

template <class T>
int64_t TransformerSegments<T>::activated_stride(const SegmentCall& call) const {
  return call[kActivated] == call[kUp] ? extent_.up_width() : extent_.ffn_width;
}

template <class T>
void TransformerSegments<T>::activate(const SegmentCall& call) const {
  const int64_t rows = extent(call).rows, width = extent_.ffn_width;
  if (extent_.style.gated) {
    swiglu_forward<T>(
        {rows, width, at(call, kUp), at(call, kActivated), activated_stride(call), gate()},
        call.settings->threads);
  } else {
    gelu_forward<T>(rows * width, at(call, kUp), at(call, kActivated), call.settings->threads);
  }
}

template class TransformerSegments<float>;
template class TransformerSegments<double>;
template class TransformerSegments<Bfloat16>;

}  // namespace strait::model
