#include "strait/shape/block_layout.h"

#include <algorithm>

namespace strait {
namespace {

/// Hands out consecutive aligned parts.
class Parts {
 public:
  int64_t take(int64_t elements) {
    const int64_t offset = next_;
    next_ += (elements + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
    return offset;
  }
  int64_t total() const { return next_; }

 private:
  int64_t next_ = 0;
};

}  // namespace

BlockExtent block_extent(const ShapeOptions& options, int64_t batch, int64_t tokens) {
  return {batch * tokens, options.width, options.ffn_width, options.heads, options.dropout > 0.0};
}

SavedLayout saved_layout(const BlockExtent& extent) {
  Parts parts;
  SavedLayout layout;
  layout.attention_mean = parts.take(extent.rows);
  layout.attention_rstd = parts.take(extent.rows);
  layout.mlp_mean = parts.take(extent.rows);
  layout.mlp_rstd = parts.take(extent.rows);
  layout.log_sum_exp = parts.take(extent.rows * extent.heads);
  layout.qkv = parts.take(extent.rows * 3 * extent.width);
  layout.attention = parts.take(extent.rows * extent.width);
  layout.middle = parts.take(extent.rows * extent.width);
  layout.up = parts.take(extent.rows * extent.ffn_width);
  layout.elements = parts.total();
  return layout;
}

ForwardLayout forward_layout(const BlockExtent& extent) {
  Parts parts;
  ForwardLayout layout;
  layout.normed = parts.take(extent.rows * extent.width);
  layout.wide = parts.take(extent.rows * std::max(3 * extent.width, extent.ffn_width));
  layout.statistics = parts.take(extent.rows * std::max<int64_t>(2, extent.heads));
  layout.elements = parts.total();
  return layout;
}

BundleLayout bundle_layout(const BlockExtent& extent) {
  Parts parts;
  BundleLayout layout;
  layout.normed_attention = parts.take(extent.rows * extent.width);
  layout.qkv_gradient = parts.take(extent.rows * 3 * extent.width);
  layout.attention = parts.take(extent.rows * extent.width);
  layout.output_gradient = parts.take(extent.rows * extent.width);
  layout.normed_mlp = parts.take(extent.rows * extent.width);
  layout.up_gradient = parts.take(extent.rows * extent.ffn_width);
  layout.activated = parts.take(extent.rows * extent.ffn_width);
  layout.down_gradient = parts.take(extent.rows * extent.width);
  layout.norm_gradients = parts.take(4 * extent.width);
  layout.elements = parts.total();
  return layout;
}

BackwardLayout backward_layout(const BlockExtent& extent) {
  Parts parts;
  BackwardLayout layout;
  layout.first = parts.take(extent.rows * std::max(3 * extent.width, extent.ffn_width));
  layout.second = parts.take(extent.rows * std::max(extent.width, extent.ffn_width));
  layout.third = parts.take(extent.rows * extent.width);
  layout.elements = parts.total();
  return layout;
}

HeadLayout head_layout(int64_t chunk_rows, int64_t width, int64_t vocabulary) {
  Parts parts;
  HeadLayout layout;
  layout.logits = parts.take(chunk_rows * vocabulary);
  layout.normed = parts.take(chunk_rows * width);
  layout.mean = parts.take(chunk_rows);
  layout.rstd = parts.take(chunk_rows);
  layout.losses = parts.take(2 * chunk_rows);  // doubles also where an element has four bytes
  layout.forward_elements = parts.total();
  layout.normed_gradient = parts.take(chunk_rows * width);
  layout.backward_elements = parts.total();
  return layout;
}

}  // namespace strait
