#include "strait/model/tensor_transformer.h"

#include <ATen/ATen.h>

#include "strait/base/errors.h"

namespace strait::model {

TensorTransformerBlock::TensorTransformerBlock(const ModelShape& shape, int64_t index,
                                               const TensorTypes& types, at::Tensor angles)
    : name_(shape.blocks[static_cast<size_t>(index)].name),
      types_(types),
      index_(index),
      width_(shape.options.width),
      ffn_width_(shape.options.ffn_width),
      heads_(shape.options.heads),
      extent_(block_extent(shape, 0, 0, types.narrow)),
      dropout_(shape.options.dropout),
      window_(layer_form(shape, index).window),
      scale_(shape.options.score_scale()),
      cap_(shape.options.score_cap),
      norm_{!shape.style.rms_norm, shape.options.norm_eps},
      angles_(std::move(angles)) {
  ensure(!is_shared(shape), "blocks on a device are not cut over x and y yet");
  const UnitShape& unit =
      shape.units[static_cast<size_t>(shape.blocks[static_cast<size_t>(index)].unit)];
  const auto layer = [&](const char* name) { return tensor_layer(unit, unit.name + name); };
  const BlockStyle& style = extent_.style;
  const auto norm = [&](const char* name) { return tensor_norm(unit, unit.name + name, style); };
  if (style.norm_before) attention_norm_ = norm(".attention_norm");
  if (style.norm_before) mlp_norm_ = norm(".mlp_norm");
  qkv_ = layer(".attention.qkv");
  up_ = layer(style.gated ? ".mlp.gate_up" : ".mlp.up");
  attention_end_ = {layer(".attention.output"),
                    {},
                    DropoutPlace::kAttentionOutput,
                    &Saved::attention_branch,
                    &Saved::attention_branch_rstd};
  mlp_end_ = {layer(".mlp.down"),
              {},
              DropoutPlace::kMlpOutput,
              &Saved::mlp_branch,
              &Saved::mlp_branch_rstd};
  if (style.norm_behind) attention_end_.norm = norm(".attention_post_norm");
  if (style.norm_behind) mlp_end_.norm = norm(".mlp_post_norm");
  if (!extent_.norms_query_key()) return;
  const bool apart = style.query_key_norm == QueryKeyNorm::kHead;
  const int64_t queries = apart ? heads_ : 1, keys = apart ? extent_.kv_heads : 1;
  query_key_ = {{norm(".attention.query_norm"), 0, queries, extent_.attention_width() / queries, 0},
                {norm(".attention.key_norm"), extent_.attention_width(), keys,
                 extent_.kv_width() / keys, queries}};
}

at::Tensor TensorTransformerBlock::matrix(const Call& call, const void* data, int64_t width) const {
  return types_.at(data, 0, {rows(call), width});
}

DropoutSite TensorTransformerBlock::site(const Call& call, DropoutPlace place) const {
  return {call.settings->seed,
          place,
          static_cast<uint64_t>(index_),
          dropout_,
          call.batch->batch,
          call.batch->share(),
          call.position,
          call.batch->sequences};
}

TensorTransformerBlock::Saved TensorTransformerBlock::saved_of(const Call& call) const {
  BlockExtent size = extent_;
  const int64_t count = size.rows = rows(call);
  const SavedLayout keep = saved_layout(size);
  const auto wide = [&](int64_t offset, std::vector<int64_t> sizes) {
    return types_.wide_at(call.saved, offset, sizes);
  };
  Saved saved;
  if (norm_.centered) saved.attention_mean = wide(keep.attention_mean, {count});
  if (norm_.centered) saved.mlp_mean = wide(keep.mlp_mean, {count});
  if (size.style.norm_before) {
    saved.attention_rstd = wide(keep.attention_rstd, {count});
    saved.mlp_rstd = wide(keep.mlp_rstd, {count});
  }
  if (size.style.norm_behind) {
    saved.attention_branch = types_.at(call.saved, keep.attention_branch, {count, width_});
    saved.mlp_branch = types_.at(call.saved, keep.mlp_branch, {count, width_});
    saved.attention_branch_rstd = wide(keep.attention_branch_rstd, {count});
    saved.mlp_branch_rstd = wide(keep.mlp_branch_rstd, {count});
  }
  if (size.norms_query_key()) {
    saved.query_key_rstd = wide(keep.query_key_rstd, {count, size.query_key_norms()});
    saved.raw_query_key =
        types_.at(call.saved, keep.raw_query_key, {count, size.query_key_width()});
  }
  saved.log_sum_exp = wide(keep.log_sum_exp, {call.batch->batch, heads_, call.batch->tokens});
  saved.qkv = types_.at(call.saved, keep.qkv, {count, size.qkv_width()});
  saved.attention = types_.at(call.saved, keep.attention, {count, size.attention_width()});
  saved.middle = types_.at(call.saved, keep.middle, {count, width_});
  saved.up = types_.at(call.saved, keep.up, {count, size.up_width()});
  return saved;
}

/// The residual stream lies in the output then.
TensorTransformerBlock::Saved TensorTransformerBlock::unsaved(const Call& call) const {
  Saved saved;
  saved.middle = matrix(call, call.output, width_);
  const auto fresh = [&](int64_t width) {
    return at::empty({rows(call), width}, saved.middle.options());
  };
  saved.qkv = fresh(extent_.qkv_width());
  saved.attention = fresh(extent_.attention_width());
  saved.up = fresh(extent_.up_width());
  return saved;
}

void TensorTransformerBlock::forward(const Call& call, int segment_begin, int segment_end) const {
  check_call(call, types_.narrow);
  ensure(call.saved || (segment_begin == 0 && segment_end == 4),
         "a tensor block forwards some of its segments only when it keeps what they make");
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
  Saved saved = call.saved ? saved_of(call) : unsaved(call);
  for (int segment = segment_begin; segment < segment_end; ++segment) {
    if (segment == 0) norm_qkv(call, saved);
    if (segment == 1) {
      attend(call, saved);
      add_branch(call, attention_end_, saved,
                 {saved.attention, matrix(call, call.input, width_), saved.middle});
    }
    if (segment == 2) norm_up(call, saved);
    if (segment == 3)
      add_branch(call, mlp_end_, saved,
                 {activated(saved.up), saved.middle, matrix(call, call.output, width_)});
  }
}

void TensorTransformerBlock::forward_cached(const Call& call) const {
  check_call(call, types_.narrow);
  ensure(call.saved == nullptr && call.cache != nullptr,
         "forward_cached: a cache and no saved bundle");
  ensure(call.position + call.batch->tokens <= call.cache_capacity,
         "forward_cached: the cache is full");
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
  Saved saved = unsaved(call);
  norm_qkv(call, saved);
  attend_cached(call, saved);
  add_branch(call, attention_end_, saved,
             {saved.attention, matrix(call, call.input, width_), saved.middle});
  norm_up(call, saved);
  add_branch(call, mlp_end_, saved, {activated(saved.up), saved.middle, saved.middle});
}

void TensorTransformerBlock::forward_backward(const Call&) const {
  throw InternalError("a transformer block has no forward_backward; it belongs to the head");
}

void TensorTransformerBlock::norm_qkv(const Call& call, Saved& saved) const {
  const at::Tensor input = matrix(call, call.input, width_);
  linear_into(
      types_, call, qkv_,
      normed(call, attention_norm_, input, {{}, saved.attention_mean, saved.attention_rstd}),
      saved.qkv);
  for (const QueryKeyNorms& part : query_key_) normalize_query_key(call, part, saved);
  rotate(call, saved.qkv, false);
}

/// The input of a branch; statistics go where `kept` has a place for them.
at::Tensor TensorTransformerBlock::normed(const Call& call, const TensorLayer& norm,
                                          const at::Tensor& x, NormResult kept) const {
  if (!extent_.style.norm_before) return x;
  const NormResult result = norm_forward(types_, call, norm_, norm, x);
  if (kept.mean.defined()) kept.mean.copy_(result.mean);
  if (kept.rstd.defined()) kept.rstd.copy_(result.rstd);
  return result.out;
}

at::Tensor TensorTransformerBlock::normed_again(const Call& call, const TensorLayer& norm,
                                                const at::Tensor& x, const NormResult& kept) const {
  return extent_.style.norm_before ? norm_again(types_, call, norm, kept, x) : x;
}

/// In place; what the product made is kept where it has a place.
void TensorTransformerBlock::normalize_query_key(const Call& call, const QueryKeyNorms& part,
                                                 const Saved& saved) const {
  const int64_t columns = part.count * part.width;
  const at::Tensor view = saved.qkv.narrow(1, part.first, columns);
  if (saved.raw_query_key.defined()) saved.raw_query_key.narrow(1, part.first, columns).copy_(view);
  const NormResult result =
      norm_forward(types_, call, norm_, part.layer, view.reshape({-1, part.width}));
  view.copy_(result.out.view_as(view));
  if (saved.query_key_rstd.defined())
    saved.query_key_rstd.narrow(1, part.rstd, part.count).copy_(result.rstd.view({-1, part.count}));
}

/// From the gradients of what RoPE was given to those of what the product made, in place.
void TensorTransformerBlock::query_key_gradient(const Call& call, const QueryKeyNorms& part,
                                                const Saved& saved, const at::Tensor& slope) const {
  const int64_t columns = part.count * part.width;
  const at::Tensor view = slope.narrow(1, part.first, columns);
  const NormResult kept{
      {}, {}, saved.query_key_rstd.narrow(1, part.rstd, part.count).reshape({-1})};
  const at::Tensor raw =
      saved.raw_query_key.narrow(1, part.first, columns).reshape({-1, part.width});
  view.copy_(norm_backward(types_, call, part.layer,
                           {kept, raw, view.reshape({-1, part.width}), call.accumulate})
                 .view_as(view));
}

at::Tensor TensorTransformerBlock::columns(const Call& call, const at::Tensor& qkv, int64_t first,
                                           int64_t count) const {
  return qkv.view({call.batch->batch, call.batch->tokens, -1}).narrow(2, first, count);
}

void TensorTransformerBlock::rotate(const Call& call, const at::Tensor& qkv, bool back) const {
  if (!angles_.defined()) return;
  const int64_t half = extent_.head_width / 2, heads = heads_ + extent_.kv_heads;
  const at::Tensor turned = columns(call, qkv, 0, heads * extent_.head_width)
                                .unflatten(2, std::vector<int64_t>{heads, extent_.head_width});
  const at::Tensor table =
      call.batch->document_starts
          ? angles_.index_select(0, document_positions(types_, *call.batch))
                .view({call.batch->batch, call.batch->tokens, 1, 2 * half})
          : angles_.narrow(0, call.position, call.batch->tokens).unsqueeze(0).unsqueeze(2);
  const at::Tensor cosines = table.narrow(3, 0, half);
  at::Tensor sines = table.narrow(3, half, half);
  if (back) sines = sines.neg();
  const at::Tensor first = turned.narrow(3, 0, half), second = turned.narrow(3, half, half);
  const at::Tensor x = types_.widen(first), y = types_.widen(second);
  const at::Tensor new_first = x.mul(cosines).sub_(y.mul(sines));
  const at::Tensor new_second = y.mul(cosines).add_(x.mul(sines));
  first.copy_(new_first);
  second.copy_(new_second);
}

TensorAttention TensorTransformerBlock::attention_form(const Call& call,
                                                       const DropoutSite* dropout) const {
  TensorAttention form{
      heads_, extent_.kv_heads, extent_.head_width, 0, window_, {}, dropout, scale_, cap_};
  const int32_t* starts = call.batch->document_starts;
  if (starts)
    form.starts =
        types_.device.view(starts, {call.batch->batch, call.batch->tokens}, Dtype::kInt32);
  return form;
}

AttentionTensors TensorTransformerBlock::attention_tensors(const Call& call,
                                                           const Saved& saved) const {
  const int64_t kv_width = extent_.kv_width(), width = extent_.attention_width();
  return {columns(call, saved.qkv, 0, width), columns(call, saved.qkv, width, kv_width),
          columns(call, saved.qkv, width + kv_width, kv_width),
          columns(call, saved.attention, 0, width), saved.log_sum_exp};
}

void TensorTransformerBlock::attend(const Call& call, const Saved& saved) const {
  const DropoutSite where = site(call, DropoutPlace::kAttention);
  tensor_attention(types_, attention_form(call, drops(call) ? &where : nullptr),
                   attention_tensors(call, saved));
}

// The cache is [batch][keys, values][capacity][kv_width]; keys are kept as RoPE has turned them.
void TensorTransformerBlock::attend_cached(const Call& call, const Saved& saved) const {
  const int64_t kv_width = extent_.kv_width(), tokens = call.batch->tokens;
  const at::Tensor cache =
      types_.at(call.cache, 0, {call.batch->batch, 2, call.cache_capacity, kv_width});
  AttentionTensors tensors = attention_tensors(call, saved);
  const at::Tensor keys = cache.select(1, 0), values = cache.select(1, 1);
  keys.narrow(1, call.position, tokens).copy_(tensors.key);
  values.narrow(1, call.position, tokens).copy_(tensors.value);
  tensors.key = keys.narrow(1, 0, call.position + tokens);
  tensors.value = values.narrow(1, 0, call.position + tokens);
  tensors.log_sum_exp = at::Tensor();
  TensorAttention form = attention_form(call, nullptr);
  form.starts = at::Tensor();
  form.first = call.position;
  tensor_attention(types_, form, tensors);
}

at::Tensor TensorTransformerBlock::dropped(const Call& call, DropoutPlace place,
                                           const at::Tensor& values) const {
  if (!drops(call)) return values;
  return types_.round(types_.widen(values).mul(dropout_factors(types_, site(call, place), width_)));
}

void TensorTransformerBlock::add_branch(const Call& call, const Ending& ending, const Saved& saved,
                                        const Stream& stream) const {
  at::Tensor branch = saved.*ending.branch;
  if (!branch.defined()) branch = at::empty({stream.x.size(0), width_}, stream.x.options());
  linear_into(types_, call, ending.product, stream.x, branch);
  at::Tensor out = stream.target, rstd = saved.*ending.rstd;
  if (!extent_.style.norm_behind) {
    at::add_out(out, stream.base, dropped(call, ending.place, branch));
    return;
  }
  const NormResult result = norm_forward(types_, call, norm_, ending.norm, branch);
  if (rstd.defined()) rstd.copy_(result.rstd);
  at::add_out(out, stream.base, result.out);
}

/// Gradient of what the product of a branch made from that of the residual stream.
at::Tensor TensorTransformerBlock::branch_gradient(const Call& call, const Ending& ending,
                                                   const Saved& saved,
                                                   const at::Tensor& slope) const {
  if (!extent_.style.norm_behind) return dropped(call, ending.place, slope);
  return norm_backward(
      types_, call, ending.norm,
      {{{}, {}, saved.*ending.rstd}, saved.*ending.branch, slope, call.accumulate});
}

void TensorTransformerBlock::norm_up(const Call& call, Saved& saved) const {
  linear_into(types_, call, up_,
              normed(call, mlp_norm_, saved.middle, {{}, saved.mlp_mean, saved.mlp_rstd}),
              saved.up);
}

/// A new tensor.
at::Tensor TensorTransformerBlock::through_gate(const at::Tensor& gate) const {
  return extent_.style.gelu_gate ? at::gelu(gate, "tanh") : at::silu(gate);
}

at::Tensor TensorTransformerBlock::activated(const at::Tensor& up) const {
  const at::Tensor values = types_.operable(up);
  if (!extent_.style.gated) return types_.round(at::gelu(values, "tanh"));
  const at::Tensor gate = values.narrow(1, 0, ffn_width_);
  return types_.round(through_gate(gate).mul_(values.narrow(1, ffn_width_, ffn_width_)));
}

at::Tensor TensorTransformerBlock::activation_gradient(const at::Tensor& up,
                                                       const at::Tensor& out_slope) const {
  const at::Tensor values = types_.operable(up), slope = types_.operable(out_slope);
  if (!extent_.style.gated) return types_.round(at::gelu_backward(slope, values, "tanh"));
  const at::Tensor gate = values.narrow(1, 0, ffn_width_),
                   value = values.narrow(1, ffn_width_, ffn_width_);
  const at::Tensor of_value = slope.mul(value);
  const at::Tensor gate_slope = extent_.style.gelu_gate ? at::gelu_backward(of_value, gate, "tanh")
                                                        : at::silu_backward(of_value, gate);
  return types_.round(at::cat({gate_slope, slope.mul(through_gate(gate))}, 1));
}

void TensorTransformerBlock::backward(const Call& call) const {
  check_call(call, types_.narrow);
  ensure(call.saved != nullptr, "backward: no saved bundle");
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
  const Saved saved = saved_of(call);
  const at::Tensor middle_slope = backward_mlp(call, saved);
  const at::Tensor input_slope = backward_attention(call, saved, middle_slope);
  matrix(call, call.input_gradient, width_).copy_(input_slope);
}

/// Gradient of what enters a branch from that of its normed form.
at::Tensor TensorTransformerBlock::entry_gradient(const Call& call, const TensorLayer& norm,
                                                  const NormResult& kept, const at::Tensor& x,
                                                  const at::Tensor& slope) const {
  if (!extent_.style.norm_before) return slope;
  return norm_backward(types_, call, norm, {kept, x, slope, call.accumulate});
}

/// Gradient of the residual stream between the two branches.
at::Tensor TensorTransformerBlock::backward_mlp(const Call& call, const Saved& saved) const {
  const at::Tensor slope = matrix(call, call.output_gradient, width_);
  const at::Tensor branch = branch_gradient(call, mlp_end_, saved, slope);
  linear_weight_gradient(types_, call, mlp_end_.product, branch, activated(saved.up));
  const at::Tensor up_slope =
      activation_gradient(saved.up, linear_input_gradient(types_, call, mlp_end_.product, branch));
  const NormResult kept{{}, saved.mlp_mean, saved.mlp_rstd};
  linear_weight_gradient(types_, call, up_, up_slope,
                         normed_again(call, mlp_norm_, saved.middle, kept));
  const at::Tensor normed_slope = linear_input_gradient(types_, call, up_, up_slope);
  return entry_gradient(call, mlp_norm_, kept, saved.middle, normed_slope).add_(slope);
}

/// Gradient of the block's input from that of the stream in the middle.
at::Tensor TensorTransformerBlock::backward_attention(const Call& call, const Saved& saved,
                                                      const at::Tensor& slope) const {
  const at::Tensor branch = branch_gradient(call, attention_end_, saved, slope);
  const TensorLayer& output = attention_end_.product;
  linear_weight_gradient(types_, call, output, branch, saved.attention);
  const at::Tensor attention_slope = linear_input_gradient(types_, call, output, branch);
  const at::Tensor qkv_slope = at::empty_like(saved.qkv);
  const DropoutSite where = site(call, DropoutPlace::kAttention);
  const int64_t kv_width = extent_.kv_width(), width = extent_.attention_width();
  tensor_attention_backward(
      types_, attention_form(call, drops(call) ? &where : nullptr), attention_tensors(call, saved),
      {columns(call, attention_slope, 0, width), columns(call, qkv_slope, 0, width),
       columns(call, qkv_slope, width, kv_width),
       columns(call, qkv_slope, width + kv_width, kv_width)});
  rotate(call, qkv_slope, true);
  for (const QueryKeyNorms& part : query_key_) query_key_gradient(call, part, saved, qkv_slope);
  const at::Tensor input = matrix(call, call.input, width_);
  const NormResult kept{{}, saved.attention_mean, saved.attention_rstd};
  linear_weight_gradient(types_, call, qkv_, qkv_slope,
                         normed_again(call, attention_norm_, input, kept));
  const at::Tensor normed_slope = linear_input_gradient(types_, call, qkv_, qkv_slope);
  return entry_gradient(call, attention_norm_, kept, input, normed_slope).add_(slope);
}

}  // namespace strait::model
