#include "strait/model/tensor_attention.h"

#include <ATen/ATen.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "strait/base/errors.h"

namespace strait::model {
namespace {

constexpr int64_t kScoreBytes = int64_t{256} << 20;

/// [batch, kv_heads, group * tokens, head_width]: heads that share keys follow each other.
at::Tensor grouped(const at::Tensor& rows, const TensorAttention& form) {
  const int64_t group = form.heads / form.kv_heads, tokens = rows.size(1);
  return rows.reshape({rows.size(0), tokens, form.kv_heads, group, form.head_width})
      .permute({0, 2, 3, 1, 4})
      .reshape({rows.size(0), form.kv_heads, group * tokens, form.head_width});
}

/// Back to [batch, tokens, heads * head_width].
at::Tensor ungrouped(const at::Tensor& heads, const TensorAttention& form, int64_t tokens) {
  const int64_t group = form.heads / form.kv_heads;
  return heads.reshape({heads.size(0), form.kv_heads, group, tokens, form.head_width})
      .permute({0, 3, 1, 2, 4})
      .reshape({heads.size(0), tokens, form.heads * form.head_width});
}

/// [batch, kv_heads, keys, head_width].
at::Tensor shared(const at::Tensor& rows, const TensorAttention& form) {
  return rows.reshape({rows.size(0), rows.size(1), form.kv_heads, form.head_width})
      .permute({0, 2, 1, 3});
}

/// Some sequences of a call, widened.
class Part {
 public:
  Part(const TensorTypes& types, const TensorAttention& form, const AttentionTensors& tensors,
       int64_t begin, int64_t count)
      : types_(types),
        form_(form),
        begin_(begin),
        count_(count),
        tokens_(tensors.query.size(1)),
        keys_(tensors.key.size(1)) {
    query_ = grouped(types.widen(rows(tensors.query)), form);
    key_ = shared(types.widen(rows(tensors.key)), form);
    value_ = shared(types.widen(rows(tensors.value)), form);
  }

  at::Tensor rows(const at::Tensor& all) const { return all.narrow(0, begin_, count_); }
  double scale() const {
    return form_.scale > 0.0 ? form_.scale : 1.0 / std::sqrt(static_cast<double>(form_.head_width));
  }
  int64_t group() const { return form_.heads / form_.kv_heads; }

  /// Scaled, capped and masked, [count, kv_heads, group * tokens, keys]. `slope`, if given, becomes
  /// what the cap multiplies gradients by, and stays undefined without a cap.
  at::Tensor scores(at::Tensor* slope = nullptr) const {
    at::Tensor all = at::matmul(query_, key_.transpose(2, 3)).mul_(scale());
    if (form_.cap > 0.0) {
      all.div_(form_.cap).tanh_();
      if (slope) *slope = all.square().neg_().add_(1.0);
      all.mul_(form_.cap);
    }
    const at::Tensor view = all.view({count_, form_.heads, tokens_, keys_});
    view.masked_fill_(hidden(), -std::numeric_limits<double>::infinity());
    return all;
  }

  /// 1 / (1 - rate) where kept, or undefined.
  at::Tensor factors() const {
    if (!form_.dropout) return {};
    DropoutSite site = *form_.dropout;
    site.batch = count_;
    std::vector<int64_t> sequences;
    for (int64_t b = begin_; b < begin_ + count_; ++b)
      sequences.push_back(form_.dropout->sequences ? form_.dropout->sequences[b] : b);
    site.sequences = sequences.data();
    const auto ramp = [&](int64_t from, int64_t size, int64_t step) {
      return at::arange(from, from + size, query_.options().dtype(at::kLong)).mul_(step);
    };
    const at::Tensor elements = ramp(0, form_.heads, int64_t{1} << 40).view({1, -1, 1, 1}) +
                                ramp(form_.first, tokens_, int64_t{1} << 20).view({1, 1, -1, 1}) +
                                ramp(0, keys_, 1).view({1, 1, 1, -1});
    return dropout_factors(types_, site, elements.expand({count_, -1, -1, -1}))
        .reshape({count_, form_.kv_heads, group() * tokens_, keys_});
  }

  const at::Tensor& query() const { return query_; }
  const at::Tensor& key() const { return key_; }
  const at::Tensor& value() const { return value_; }
  int64_t tokens() const { return tokens_; }

 private:
  /// True where a query must not look: [count or 1, 1, tokens, keys].
  at::Tensor hidden() const {
    const auto options = query_.options().dtype(at::kInt);
    const at::Tensor keys = at::arange(0, keys_, options);
    const at::Tensor positions =
        at::arange(form_.first, form_.first + tokens_, options).view({1, 1, -1, 1});
    at::Tensor later = keys.gt(positions);
    if (form_.window > 0) later = later.logical_or(keys.le(positions.sub(form_.window)));
    if (!form_.starts.defined()) return later;
    return later.logical_or(keys.lt(rows(form_.starts).view({count_, 1, tokens_, 1})));
  }

  const TensorTypes& types_;
  const TensorAttention& form_;
  int64_t begin_, count_, tokens_, keys_;
  at::Tensor query_, key_, value_;
};

/// Calls body(part) on as many sequences at a time as the scores' memory allows.
template <class Body>
void for_parts(const TensorTypes& types, const TensorAttention& form,
               const AttentionTensors& tensors, const Body& body) {
  const int64_t batch = tensors.query.size(0);
  const int64_t bytes =
      form.heads * tensors.query.size(1) * tensors.key.size(1) * dtype_bytes(types.wide);
  const int64_t most = std::max<int64_t>(1, kScoreBytes / std::max<int64_t>(1, bytes));
  for (int64_t begin = 0; begin < batch; begin += most)
    body(Part(types, form, tensors, begin, std::min(most, batch - begin)));
}

#if defined(STRAIT_CUDA)
// Never run yet on a GPU: see docs/gpu.md.

bool flash(const TensorTypes& types, const TensorAttention& form, const at::Tensor& query) {
  return query.is_cuda() && types.narrow != types.wide && !form.starts.defined() && !form.dropout &&
         form.first == 0 && form.window == 0 && form.scale == 0.0 && form.cap == 0.0 &&
         form.head_width % 8 == 0 && form.head_width <= 256;
}

/// [batch, heads, tokens, head_width]; shared heads repeated.
at::Tensor all_heads(const at::Tensor& rows, const TensorAttention& form) {
  const int64_t heads = rows.size(2) / form.head_width;
  const at::Tensor view =
      rows.reshape({rows.size(0), rows.size(1), heads, form.head_width}).transpose(1, 2);
  return heads == form.heads ? view : view.repeat_interleave(form.heads / heads, 1);
}

at::Tensor as_rows(const at::Tensor& heads, int64_t kept_heads) {
  const int64_t group = heads.size(1) / kept_heads;
  at::Tensor all = heads;
  if (group > 1)
    all = at::sum(heads.reshape({heads.size(0), kept_heads, group, heads.size(2), heads.size(3)}),
                  {2}, false, at::kFloat);
  return all.transpose(1, 2).reshape({all.size(0), all.size(2), kept_heads * all.size(3)});
}

void flash_forward(const TensorAttention& form, const AttentionTensors& t) {
  const auto result = at::_scaled_dot_product_flash_attention(
      all_heads(t.query, form), all_heads(t.key, form), all_heads(t.value, form), 0.0, true, false);
  at::Tensor(t.out).copy_(as_rows(std::get<0>(result), form.heads));
  if (t.log_sum_exp.defined()) at::Tensor(t.log_sum_exp).copy_(std::get<1>(result));
}

void flash_backward(const TensorAttention& form, const AttentionTensors& t,
                    const AttentionGradients& gradients) {
  const at::Tensor none = at::empty({2}, t.query.options().dtype(at::kUInt64));
  const int64_t tokens = t.query.size(1);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
      all_heads(gradients.out, form), all_heads(t.query, form), all_heads(t.key, form),
      all_heads(t.value, form), all_heads(t.out, form), t.log_sum_exp, {}, {}, tokens, tokens, 0.0,
      true, none, none);
  at::Tensor(gradients.query).copy_(as_rows(dq, form.heads));
  at::Tensor(gradients.key).copy_(as_rows(dk, form.kv_heads));
  at::Tensor(gradients.value).copy_(as_rows(dv, form.kv_heads));
}
#else
constexpr bool flash(const TensorTypes&, const TensorAttention&, const at::Tensor&) {
  return false;
}
void flash_forward(const TensorAttention&, const AttentionTensors&) {}
void flash_backward(const TensorAttention&, const AttentionTensors&, const AttentionGradients&) {}
#endif

}  // namespace

void tensor_attention(const TensorTypes& types, const TensorAttention& form,
                      const AttentionTensors& tensors) {
  if (flash(types, form, tensors.query)) return flash_forward(form, tensors);
  for_parts(types, form, tensors, [&](const Part& part) {
    at::Tensor scores = part.scores();
    const at::Tensor log_sum_exp = at::logsumexp(scores, {3}, true);
    if (tensors.log_sum_exp.defined())
      part.rows(tensors.log_sum_exp).view(log_sum_exp.sizes()).copy_(log_sum_exp);
    at::Tensor share = scores.sub_(log_sum_exp).exp_();
    const at::Tensor factors = part.factors();
    if (factors.defined()) share.mul_(factors);
    part.rows(tensors.out).copy_(ungrouped(at::matmul(share, part.value()), form, part.tokens()));
  });
}

void tensor_attention_backward(const TensorTypes& types, const TensorAttention& form,
                               const AttentionTensors& tensors,
                               const AttentionGradients& gradients) {
  ensure(form.first == 0, "attention's backward starts at the first token");
  if (flash(types, form, tensors.query)) return flash_backward(form, tensors, gradients);
  for_parts(types, form, tensors, [&](const Part& part) {
    at::Tensor cap_slope;
    at::Tensor share = part.scores(&cap_slope);
    share
        .sub_(part.rows(tensors.log_sum_exp)
                  .reshape({share.size(0), share.size(1), share.size(2), 1}))
        .exp_();
    const at::Tensor out = grouped(types.widen(part.rows(tensors.out)), form);
    const at::Tensor slope = grouped(types.widen(part.rows(gradients.out)), form);
    at::Tensor share_slope = at::matmul(slope, part.value().transpose(2, 3));
    const at::Tensor factors = part.factors();
    if (factors.defined()) share_slope.mul_(factors);
    const at::Tensor dropped = factors.defined() ? share.mul(factors) : share;
    const at::Tensor value_gradient = at::matmul(dropped.transpose(2, 3), slope);
    const at::Tensor delta = slope.mul(out).sum({3}, true);
    const at::Tensor score_slope = share_slope.sub_(delta).mul_(share).mul_(part.scale());
    if (cap_slope.defined()) score_slope.mul_(cap_slope);
    const auto narrow = [](const at::Tensor& heads) {
      return heads.permute({0, 2, 1, 3}).reshape({heads.size(0), heads.size(2), -1});
    };
    part.rows(gradients.query)
        .copy_(ungrouped(at::matmul(score_slope, part.key()), form, part.tokens()));
    part.rows(gradients.key).copy_(narrow(at::matmul(score_slope.transpose(2, 3), part.query())));
    part.rows(gradients.value).copy_(narrow(value_gradient));
  });
}

}  // namespace strait::model
