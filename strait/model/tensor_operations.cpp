#include "strait/model/tensor_operations.h"

#include <ATen/ATen.h>

#include "strait/model/decoder_blocks.h"
#include "strait/tensor/scalar_type.h"

namespace strait::model {
namespace {

const void* behind(const void* base, int64_t bytes) {
  return static_cast<const char*>(base) + bytes;
}

/// bf16 norms on the processor are made in fp32: its operators keep the statistics in bf16. fp16
/// ones everywhere: the operators round the parameters' gradients, which a loss scale may have made
/// too large for fp16.
bool direct(const TensorTypes& types, const at::Tensor& x) {
  return types.narrow == types.wide || (!x.is_cpu() && types.narrow == Dtype::kBfloat16);
}

at::Tensor column(const at::Tensor& values) { return values.unsqueeze(1); }

/// What a norm multiplies by, wide.
at::Tensor norm_factor(const TensorTypes& types, const Call& call, const TensorLayer& layer) {
  const at::Tensor weight = types.widen(layer.weight.weight(types, call));
  return layer.from_one ? weight.add(1.0) : weight;
}

}  // namespace

at::Tensor TensorTypes::at(const void* base, int64_t offset,
                           const std::vector<int64_t>& sizes) const {
  return device.view(behind(base, offset * dtype_bytes(narrow)), sizes, narrow);
}

at::Tensor TensorTypes::wide_at(const void* base, int64_t offset,
                                const std::vector<int64_t>& sizes) const {
  return device.view(behind(base, offset * dtype_bytes(narrow)), sizes, wide);
}

at::Tensor TensorTypes::widen(const at::Tensor& values) const {
  return values.to(tensor::scalar_type(wide));
}
at::Tensor TensorTypes::round(const at::Tensor& values) const {
  return values.to(tensor::scalar_type(narrow));
}

at::Tensor TensorTypes::operable(const at::Tensor& values) const {
  return narrow == Dtype::kFloat16 && values.is_cpu() ? widen(values) : values;
}

at::Tensor TensorParameter::weight(const TensorTypes& types, const Call& call) const {
  return offset < 0 ? at::Tensor() : types.at(call.weights, offset, sizes);
}

at::Tensor TensorParameter::gradient(const TensorTypes& types, const Call& call) const {
  if (offset < 0 || !call.gradient) return at::Tensor();
  return types.device.view(behind(call.gradient, offset * dtype_bytes(types.wide)), sizes,
                           types.wide);
}

TensorParameter tensor_parameter(const UnitShape& unit, const std::string& name) {
  const int64_t offset = parameter_offset(unit, name);
  if (offset < 0) return {};
  return {offset, unit.parameter(name).dims};
}

TensorLayer tensor_layer(const UnitShape& unit, const std::string& name) {
  TensorLayer layer{tensor_parameter(unit, name + ".weight"),
                    tensor_parameter(unit, name + ".bias")};
  unit.parameter(name + ".weight");  // throws when there is none
  return layer;
}

TensorLayer tensor_norm(const UnitShape& unit, const std::string& name, const BlockStyle& style) {
  TensorLayer layer = tensor_layer(unit, name);
  layer.from_one = style.norm_from_one;
  return layer;
}

void put(at::Tensor target, const at::Tensor& value, bool accumulate) {
  if (accumulate)
    target.add_(value);
  else
    target.copy_(value);
}

void linear_into(const TensorTypes& types, const Call& call, const TensorLayer& layer,
                 const at::Tensor& x, at::Tensor out) {
  const at::Tensor weight = layer.weight.weight(types, call), matrix = weight.t();
  if (const at::Tensor values = types.operable(x); !values.is_same(x)) {
    const at::Tensor product = at::mm(values, types.operable(matrix));
    if (layer.bias.offset >= 0) product.add_(layer.bias.weight(types, call));
    out.copy_(product);
  } else if (layer.bias.offset >= 0)
    at::addmm_out(out, layer.bias.weight(types, call), x, matrix);
  else
    at::mm_out(out, x, matrix);
}

at::Tensor linear_input_gradient(const TensorTypes& types, const Call& call,
                                 const TensorLayer& layer, const at::Tensor& dy) {
  return narrow_product(types, dy, layer.weight.weight(types, call));
}

at::Tensor narrow_product(const TensorTypes& types, const at::Tensor& left,
                          const at::Tensor& right) {
  return types.round(at::mm(types.operable(left), types.operable(right)));
}

void wide_product(const TensorTypes& types, const at::Tensor& left, const at::Tensor& right,
                  at::Tensor out, bool accumulate) {
  if (types.narrow != types.wide)
    types.device.wide_product(left, right, out, accumulate);
  else if (accumulate)
    out.addmm_(left, right);
  else
    at::mm_out(out, left, right);
}

void linear_weight_gradient(const TensorTypes& types, const Call& call, const TensorLayer& layer,
                            const at::Tensor& dy, const at::Tensor& x) {
  wide_product(types, dy.t(), x, layer.weight.gradient(types, call), call.accumulate);
  if (layer.bias.offset >= 0)
    put(layer.bias.gradient(types, call), at::sum(dy, {0}, false, tensor::scalar_type(types.wide)),
        call.accumulate);
}

NormResult norm_forward(const TensorTypes& types, const Call& call, const TensorNorm& norm,
                        const TensorLayer& layer, const at::Tensor& x) {
  const at::Tensor weight = layer.weight.weight(types, call);
  NormResult result;
  if (!norm.centered) {
    result.rstd = at::rsqrt(types.widen(x).square().mean({1}).add_(norm.eps));
    result.out = norm_again(types, call, layer, result, x);
    return result;
  }
  const bool as_is = direct(types, x);
  const auto form = [&](const at::Tensor& values) {
    return as_is || !values.defined() ? values : types.widen(values);
  };
  const at::Tensor bias = layer.bias.weight(types, call);
  auto [out, mean, rstd] =
      at::native_layer_norm(form(x), {x.size(1)}, form(weight), form(bias), norm.eps);
  result.out = types.round(out);
  result.mean = types.widen(mean.reshape({-1}));
  result.rstd = types.widen(rstd.reshape({-1}));
  return result;
}

at::Tensor norm_again(const TensorTypes& types, const Call& call, const TensorLayer& layer,
                      const NormResult& kept, const at::Tensor& x) {
  at::Tensor wide = types.widen(x);
  if (kept.mean.defined()) wide = wide.sub(column(kept.mean));
  wide = wide.mul(column(kept.rstd)).mul_(norm_factor(types, call, layer));
  if (layer.bias.offset >= 0) wide.add_(types.widen(layer.bias.weight(types, call)));
  return types.round(wide);
}

at::Tensor norm_backward(const TensorTypes& types, const Call& call, const TensorLayer& layer,
                         const NormSlope& slope) {
  const auto& [kept, x, dy, accumulate] = slope;
  const at::Tensor weight = layer.weight.weight(types, call);
  const bool biased = layer.bias.offset >= 0;
  if (kept.mean.defined()) {
    const bool as_is = direct(types, x);
    const auto form = [&](const at::Tensor& values) {
      return as_is ? values : types.widen(values);
    };
    const at::Tensor bias = biased ? form(layer.bias.weight(types, call)) : at::Tensor();
    const auto [dx, weight_gradient, bias_gradient] =
        at::native_layer_norm_backward(form(dy), form(x), {x.size(1)}, column(kept.mean),
                                       column(kept.rstd), form(weight), bias, {true, true, biased});
    put(layer.weight.gradient(types, call), weight_gradient, accumulate);
    if (biased) put(layer.bias.gradient(types, call), bias_gradient, accumulate);
    return types.round(dx);
  }
  const at::Tensor normal = types.widen(x).mul(column(kept.rstd)), wide = types.widen(dy);
  put(layer.weight.gradient(types, call), wide.mul(normal).sum({0}), accumulate);
  const at::Tensor scaled = wide.mul(norm_factor(types, call, layer));
  const at::Tensor along = scaled.mul(normal).mean({1}, true);
  return types.round(scaled.sub(normal.mul(along)).mul_(column(kept.rstd)));
}

namespace {

at::Tensor shifted(const at::Tensor& bits, int64_t by) {
  const int64_t kept = static_cast<int64_t>(~uint64_t{0} >> by);
  return at::bitwise_right_shift(bits, by).bitwise_and_(kept);
}

/// mix64 of strait/base/random.h; int64 products and sums wrap around as uint64 ones do.
at::Tensor mixed(at::Tensor x) {
  const auto number = [](uint64_t bits) { return static_cast<int64_t>(bits); };
  x = x.add(number(0x9e3779b97f4a7c15ULL));
  x = x.bitwise_xor(shifted(x, 30)).mul_(number(0xbf58476d1ce4e5b9ULL));
  x = x.bitwise_xor(shifted(x, 27)).mul_(number(0x94d049bb133111ebULL));
  return x.bitwise_xor(shifted(x, 31));
}

}  // namespace

at::Tensor document_positions(const TensorTypes& types, const Batch& batch) {
  const at::Tensor starts =
      types.device.view(batch.document_starts, {batch.batch, batch.tokens}, Dtype::kInt32);
  return at::arange(batch.tokens, starts.options().dtype(at::kLong)).sub(starts).reshape({-1});
}

at::Tensor dropout_factors(const TensorTypes& types, const DropoutSite& site,
                           const at::Tensor& elements) {
  std::vector<int64_t> keys;
  kernel::DropoutMask mask;
  for (int64_t sequence = 0; sequence < site.batch; ++sequence) {
    mask = site.mask(sequence);
    keys.push_back(static_cast<int64_t>(mask.key));
  }
  std::vector<int64_t> sizes(static_cast<size_t>(elements.dim()), 1);
  sizes[0] = site.batch;
  const at::Tensor key = at::tensor(keys, at::kLong).to(elements.device()).view(sizes);
  const at::Tensor draw = mixed(mixed(shifted(elements, 1)).bitwise_xor(key));
  const at::Tensor odd = elements.bitwise_and(1).to(at::kBool);
  const at::Tensor half = at::where(odd, shifted(draw, 32), draw.bitwise_and(int64_t{0xffffffff}));
  const at::Tensor keeps = half.ge(static_cast<int64_t>(mask.threshold));
  return keeps.to(tensor::scalar_type(types.wide)).mul_(mask.scale);
}

at::Tensor dropout_factors(const TensorTypes& types, const DropoutSite& site, int64_t width) {
  const at::Tensor like = types.device.view(nullptr, {0}, Dtype::kInt64);
  const at::Tensor elements =
      at::arange(site.first_token * width, (site.first_token + site.share.tokens) * width,
                 like.options())
          .unsqueeze(0)
          .expand({site.batch, site.share.tokens * width});
  return dropout_factors(types, site, elements).reshape({site.batch * site.share.tokens, width});
}

}  // namespace strait::model
