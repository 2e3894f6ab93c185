#include "strait/shape/block_layout.h"

#include <algorithm>

namespace strait {
namespace {

/// Hands out consecutive aligned parts.
class Parts {
 public:
  explicit Parts(int64_t wide) : alignment_(kPartAlignment * wide) {}
  int64_t take(int64_t elements) {
    const int64_t offset = next_;
    next_ += (elements + alignment_ - 1) / alignment_ * alignment_;
    return offset;
  }
  int64_t total() const { return next_; }

 private:
  int64_t alignment_, next_ = 0;
};

}  // namespace

BlockExtent block_extent(const ModelShape& model, int64_t batch, int64_t tokens, Dtype dtype) {
  const ShapeOptions& options = model.options;
  return {batch * tokens,
          options.width / model.y,
          options.ffn_width / model.x,
          options.heads / model.x,
          options.kv_heads / model.x,
          options.head_elements(),
          model.style,
          wide_elements(dtype),
          model.x,
          model.y,
          8 / dtype_bytes(dtype),
          model.sequence,
          model.engine,
          0,
          false,
          model.splits_rows ? model.x : 1};
}

SavedLayout saved_layout(const BlockExtent& extent) {
  Parts parts(extent.wide);
  SavedLayout layout;
  const int64_t first = extent.first_own_rows(), own = extent.own_rows();
  const bool before = extent.style.norm_before, behind = extent.style.norm_behind;
  const auto statistic = [&](bool has, int64_t rows) {
    return parts.take(has ? extent.wide * rows : 0);
  };
  layout.attention_mean = statistic(before && !extent.style.rms_norm, first);
  layout.attention_rstd = statistic(before, first);
  layout.mlp_mean = statistic(before && !extent.style.rms_norm, own);
  layout.mlp_rstd = statistic(before, own);
  layout.query_key_rstd = statistic(true, extent.first_rows() * extent.query_key_norms());
  layout.attention_branch_rstd = statistic(behind, first);
  layout.mlp_branch_rstd = statistic(behind, own);
  const int64_t attended = extent.attended_rows();
  layout.log_sum_exp = parts.take(extent.wide * attended * extent.heads);
  layout.qkv = parts.take(attended * extent.qkv_width());
  layout.attention = parts.take(attended * extent.attention_width());
  layout.middle = parts.take((extent.attends_apart ? extent.border_rows() : own) * extent.width);
  layout.up = parts.take(extent.keeps_up_apart() ? 0 : extent.rows * extent.up_width());
  layout.raw_query_key = parts.take(extent.first_rows() * extent.query_key_width());
  layout.attention_branch = parts.take(first * extent.branch_width());
  layout.mlp_branch = parts.take(own * extent.branch_width());
  layout.elements = parts.total();
  return layout;
}

ForwardLayout forward_layout(const BlockExtent& extent) {
  Parts parts(extent.wide);
  ForwardLayout layout;
  layout.normed = parts.take(extent.rows * std::max(extent.width, extent.attention_width()));
  layout.wide = parts.take(extent.rows * std::max(extent.qkv_width(), extent.up_width()));
  layout.branch = parts.take(extent.rows * extent.branch_width());
  const int64_t statistics = std::max({int64_t{2}, extent.heads, extent.query_key_norms()});
  layout.statistics = parts.take(extent.wide * extent.rows * statistics);
  layout.elements = parts.total();
  return layout;
}

BundleLayout bundle_layout(const BlockExtent& extent) {
  Parts parts(extent.wide);
  BundleLayout layout;
  const bool whole = extent.row_split == 1;  // else these are values of their own
  const int64_t stream = whole ? extent.rows * extent.width : 0;
  const int64_t first_stream = whole ? extent.first_rows() * extent.width : 0;
  const int64_t norms = whole && extent.style.norm_before ? extent.wide * 4 * extent.width : 0;
  layout.normed_attention = parts.take(first_stream);
  layout.qkv_gradient = parts.take(extent.attended_rows() * extent.qkv_width());
  layout.normed_mlp = parts.take(stream);
  layout.up_gradient = parts.take(extent.rows * extent.up_width());
  layout.norm_gradients = parts.take(norms);
  layout.deferred_elements = parts.total();
  layout.attention = parts.take(extent.first_rows() * extent.attention_width());
  layout.output_gradient = parts.take(first_stream);
  layout.activated = parts.take(extent.rows * extent.ffn_width);
  layout.down_gradient = parts.take(stream);
  layout.query_key_gradients = parts.take(extent.wide * extent.query_key_weights());
  layout.branch_gradients = parts.take(whole ? extent.wide * 2 * extent.branch_width() : 0);
  layout.elements = parts.total();
  return layout;
}

BackwardLayout backward_layout(const BlockExtent& extent) {
  Parts parts(extent.wide);
  BackwardLayout layout;
  layout.first = parts.take(extent.rows * std::max(extent.qkv_width(), extent.up_width()));
  layout.second = parts.take(extent.rows * std::max(extent.width, extent.ffn_width));
  layout.third = parts.take(extent.rows * std::max(extent.width, extent.attention_width()));
  layout.delta = parts.take(extent.wide * extent.rows * extent.heads);
  layout.query_sum =
      parts.take(extent.wide > 1 ? extent.wide * extent.rows * extent.attention_width() : 0);
  layout.elements = parts.total();
  return layout;
}

HeadLayout head_layout(int64_t chunk_rows, int64_t width, int64_t vocabulary, Dtype dtype) {
  const int64_t wide = wide_elements(dtype);
  Parts parts(wide);
  HeadLayout layout;
  layout.logits = parts.take(wide * chunk_rows * vocabulary);
  layout.normed = parts.take(chunk_rows * width);
  layout.mean = parts.take(wide * chunk_rows);
  layout.rstd = parts.take(wide * chunk_rows);
  layout.losses = parts.take(wide * 2 * chunk_rows);  // doubles in any type
  layout.forward_elements = parts.total();
  layout.normed_gradient = parts.take(chunk_rows * width);
  layout.backward_elements = parts.total();
  return layout;
}

}  // namespace strait
