#include "strait/model/transformer_block.h"

#include <algorithm>

#include "strait/base/errors.h"

namespace strait::model {
namespace {

using enum BlockValue;

}  // namespace

template <class T>
SegmentCall TransformerBlock<T>::begin(const Call& call) const {
  check_call(call, dtype_);
  SegmentCall table;
  table.settings = call.settings;
  table.batch = call.batch;
  table.weights = call.weights;
  table.gradient = call.gradient;
  table.accumulate = call.accumulate;
  table.position = call.position;
  table.give(kInput, call.input);
  const BlockExtent extent = segments_.extent(table);
  ensure(extent.x == 1 && extent.y == 1, "a block that ranks share runs by its segments");
  return table;
}

template <class T>
SegmentCall TransformerBlock<T>::forward_call(const Call& call) const {
  SegmentCall table = begin(call);
  const BlockExtent extent = segments_.extent(table);
  const ForwardLayout work = forward_layout(extent);
  T* workspace = static_cast<T*>(call.workspace);
  table.give(kOutput, call.output);
  table.give(kNormedAttention, workspace + work.normed);
  table.give(kNormedMlp, workspace + work.normed);
  table.give(kActivated, workspace + work.wide);
  if (call.saved) {
    table.give(saved_offsets(extent), call.saved, dtype_);
  } else {
    share_forward_memory(call, table);
  }
  skip_norms(call, table);
  return table;
}

/// Without norms before the branches these read the residual stream where it is.
template <class T>
void TransformerBlock<T>::skip_norms(const Call& call, SegmentCall& table) const {
  if (segments_.extent(table).style.norm_before) return;
  table.give(kNormedAttention, call.input);
  table.give(kNormedMlp, table[kMiddle]);
}

template <class T>
void TransformerBlock<T>::share_forward_memory(const Call& call, SegmentCall& table) const {
  const BlockExtent extent = segments_.extent(table);
  T* workspace = static_cast<T*>(call.workspace);
  auto* statistics = reinterpret_cast<Wide<T>*>(workspace + forward_layout(extent).statistics);
  for (const BlockValue mean : {kAttentionMean, kMlpMean})
    if (!extent.style.rms_norm) table.give(mean, statistics);
  for (const BlockValue rstd : {kAttentionRstd, kMlpRstd, kAttentionBranchRstd, kMlpBranchRstd})
    table.give(rstd, statistics + extent.rows);
  table.give(kQueryKeyRstd, statistics);
  for (const BlockValue branch : {kAttentionBranch, kMlpBranch})
    table.give(branch, workspace + forward_layout(extent).branch);
  table.give(kQkv, table[kActivated]);
  table.give(kUp, table[kActivated]);
  table.give(kAttention, table[kNormedAttention]);
  table.give(kMiddle, call.output);
}

template <class T>
void TransformerBlock<T>::give_saved(const Call& call, SegmentCall& table) const {
  ensure(call.saved != nullptr, "backward: no saved bundle");
  table.give(saved_offsets(segments_.extent(table)), call.saved, dtype_);
  table.give(kOutputGradient, call.output_gradient);
  table.give(kMiddleGradient, call.input_gradient);
  table.give(kInputGradient, call.input_gradient);
}

template <class T>
SegmentCall TransformerBlock<T>::merged_call(const Call& call) const {
  SegmentCall table = begin(call);
  give_saved(call, table);
  const BackwardLayout work = backward_layout(segments_.extent(table));
  T* workspace = static_cast<T*>(call.workspace);
  T *first = workspace + work.first, *second = workspace + work.second,
    *third = workspace + work.third;
  for (const BlockValue value : {kUpGradient, kQkvGradient}) table.give(value, first);
  for (const BlockValue value : {kActivated, kNormedMlp, kNormedAttention})
    table.give(value, second);
  for (const BlockValue value : {kNormedMlpGradient, kAttentionGradient, kNormedAttentionGradient})
    table.give(value, third);
  skip_norms(call, table);
  const bool apart = segments_.drops(table) || segments_.extent(table).style.norm_behind;
  table.give(kDownSumGradient, apart ? third : call.output_gradient);
  table.give(kOutputSumGradient, apart ? second : call.input_gradient);
  table.give(kKeptAttention, table[kAttention]);
  table.give(kDelta, workspace + work.delta);
  table.give(kQuerySum, workspace + work.query_sum);
  return table;
}

template <class T>
SegmentCall TransformerBlock<T>::split_call(const Call& call) const {
  ensure(call.bundle != nullptr, "split backward: no bundle");
  SegmentCall table = begin(call);
  const BlockExtent extent = segments_.extent(table);
  const BundleLayout bundle = bundle_layout(extent);
  table.give(deferred_offsets(extent), call.bundle, dtype_);
  table.give(bundle_offsets(extent), static_cast<T*>(call.bundle) + bundle.deferred_elements,
             dtype_);
  if (extent.norms_query_key())
    table.give(kQueryKeyNormGradient, static_cast<T*>(call.bundle) + bundle.query_key_gradients);
  if (!call.workspace) return table;  // backward_weight takes none
  give_saved(call, table);
  const BackwardLayout work = backward_layout(segments_.extent(table));
  T* workspace = static_cast<T*>(call.workspace);
  for (const BlockValue value : {kNormedMlpGradient, kAttentionGradient, kNormedAttentionGradient})
    table.give(value, workspace + work.third);
  table.give(kDelta, workspace + work.delta);
  table.give(kQuerySum, workspace + work.query_sum);
  return table;
}

template <class T>
void TransformerBlock<T>::forward(const Call& call, int segment_begin, int segment_end) const {
  const SegmentCall table = forward_call(call);
  const SegmentRange range = segments_of_pieces(segment_begin, segment_end);
  for (int segment = range.begin; segment < range.end; ++segment)
    segments_.run_forward(table, static_cast<Segment>(segment));
}

template <class T>
void TransformerBlock<T>::forward_cached(const Call& call) const {
  ensure(call.saved == nullptr && call.cache != nullptr,
         "forward_cached: a cache and no saved bundle");
  ensure(call.position + call.batch->tokens <= call.cache_capacity,
         "forward_cached: the cache is full");
  const SegmentCall table = forward_call(call);
  for (int index = 0; index < kNumSegments; ++index) {
    const auto segment = static_cast<Segment>(index);
    if (segment == Segment::kAttention) {
      attend_cached(call, table);
    } else {
      segments_.run_forward(table, segment);
    }
  }
}

template <class T>
void TransformerBlock<T>::forward_backward(const Call&) const {
  throw InternalError("a transformer block has no forward_backward; it belongs to the head");
}

// Inputs and weights take turns, so that parts of the workspace are free again.
template <class T>
void TransformerBlock<T>::backward(const Call& call) const {
  const SegmentCall table = merged_call(call);
  for (int index = kNumSegments - 1; index >= 0; --index) {
    segments_.run_backward_input(table, static_cast<Segment>(index));
    segments_.run_backward_weight(table, static_cast<Segment>(index));
  }
}

template <class T>
void TransformerBlock<T>::backward_input(const Call& call, int segment_begin,
                                         int segment_end) const {
  const SegmentCall table = split_call(call);
  const SegmentRange range = segments_of_pieces(segment_begin, segment_end);
  for (int index = range.end - 1; index >= range.begin; --index)
    segments_.run_backward_input(table, static_cast<Segment>(index));
}

template <class T>
void TransformerBlock<T>::backward_weight(const Call& call, int segment_begin,
                                          int segment_end) const {
  const SegmentCall table = split_call(call);
  const SegmentRange range = segments_of_pieces(segment_begin, segment_end);
  for (int index = range.end - 1; index >= range.begin; --index)
    segments_.run_backward_weight(table, static_cast<Segment>(index));
}

// The cache is [batch][keys, values][capacity][kv_width]; keys are kept as RoPE has turned them.
template <class T>
void TransformerBlock<T>::attend_cached(const Call& call, const SegmentCall& table) const {
  const BlockExtent extent = segments_.extent(table);
  const int64_t tokens = call.batch->tokens, heads = extent.heads;
  const int64_t kv_width = extent.kv_width(), plane = call.cache_capacity * kv_width;
  T* cache = static_cast<T*>(call.cache);
  for (int64_t row = 0; row < extent.rows; ++row) {
    const T* keys =
        static_cast<const T*>(table[kQkv]) + row * extent.qkv_width() + extent.attention_width();
    T* to = cache + row / tokens * 2 * plane + (call.position + row % tokens) * kv_width;
    std::copy_n(keys, kv_width, to);
    std::copy_n(keys + kv_width, kv_width, to + plane);
  }
  kernel::parallel_ranges(
      call.batch->batch * heads, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t sequence = item / heads, head = item % heads;
          const int64_t shared = head / (heads / extent.kv_heads) * extent.head_width;
          kernel::AttentionCall<T> one = segments_.attention_call(table, sequence, head);
          one.first = call.position;
          one.k = cache + sequence * 2 * plane + shared;
          one.v = one.k + plane;
          one.kv_stride = kv_width;
          one.starts = nullptr;
          kernel::attention(one);
        }
      });
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
