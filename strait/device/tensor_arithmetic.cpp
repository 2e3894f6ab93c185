#include "strait/device/tensor_arithmetic.h"

#include <ATen/ATen.h>
#include <torch/version.h>

#include <cmath>

#include "strait/base/errors.h"
#include "strait/codec/error_feedback.h"
#include "strait/device/tensor_codec.h"
#include "strait/tensor/device.h"
#include "strait/tensor/scalar_type.h"

namespace strait::device {
namespace {

using codec::CodecKind;
using codec::CodecSpec;

struct UpdateTensors {
  at::Tensor weights, gradient;
  at::Tensor states[2];
};

void sgd(const UpdateCall& call, UpdateTensors& t) {
  if (call.weight_decay != 0) t.weights.mul_(1 - call.learning_rate * call.weight_decay);
  t.states[0].mul_(call.options.betas[0]).add_(t.gradient, call.gradient_scale);
  t.weights.add_(t.states[0], -call.learning_rate);
}

/// Equation by equation, as optim/adamw.h states it.
void adamw_in_steps(const UpdateCall& call, UpdateTensors& t, const at::Tensor& gradient) {
  const double beta1 = call.options.betas[0], beta2 = call.options.betas[1];
  const double step = static_cast<double>(call.step);
  const double size = call.learning_rate / (1 - std::pow(beta1, step));
  const double root = std::sqrt(1 - std::pow(beta2, step));
  if (call.weight_decay != 0) t.weights.mul_(1 - call.learning_rate * call.weight_decay);
  t.states[0].mul_(beta1).add_(gradient, 1 - beta1);
  t.states[1].mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  t.weights.addcdiv_(t.states[0], t.states[1].sqrt().div_(root).add_(call.options.eps), -size);
}

void adamw(const UpdateCall& call, UpdateTensors& t) {
  const at::Tensor gradient =
      call.gradient_scale == 1.0 ? t.gradient : t.gradient.mul(call.gradient_scale);
#if TORCH_VERSION_MAJOR >= 2
  if (t.weights.is_cuda()) {  // one pass over memory
    const at::Tensor step =
        at::full({}, static_cast<double>(call.step), t.weights.options().dtype(at::kFloat));
    at::_fused_adamw_({t.weights}, {gradient}, {t.states[0]}, {t.states[1]}, {}, {step},
                      call.learning_rate, call.options.betas[0], call.options.betas[1],
                      call.weight_decay, call.options.eps, false, false);
    return;
  }
#endif
  adamw_in_steps(call, t, gradient);
}

class TensorArithmetic final : public Arithmetic {
 public:
  explicit TensorArithmetic(tensor::Device& device) : device_(device) {}

  void put(const void* host, void* value, int64_t bytes) override {
    tensor::copy_bytes(&device_, host, value, bytes);
  }
  void get(const void* value, void* host, int64_t bytes) override {
    tensor::copy_bytes(&device_, value, host, bytes);
  }
  void fill_zero(void* value, int64_t bytes) override { tensor::fill_zero(&device_, value, bytes); }
  void add(double amount, double* scalar) override { scalar_at(scalar).add_(amount); }

  void add_squared_norm(const codec::ConstValues& values, double* scalar) override {
    if (values.elements == 0) return;
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    const at::Tensor norm = at::linalg_vector_norm(numbers(values), 2, {}, false, at::kDouble);
    scalar_at(scalar).add_(norm.square());
  }

  void update(const UpdateCall& call) override {
    if (call.weights.elements == 0) return;
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    const auto like = [&](const void* data) {
      return device_.view(data, {call.weights.elements}, call.weights.dtype);
    };
    UpdateTensors tensors{like(call.weights.data), like(call.gradient.data), {}};
    for (int nth : {0, 1})
      if (call.states[nth]) tensors.states[nth] = like(call.states[nth]);
    if (call.options.kind == "adamw")
      adamw(call, tensors);
    else
      sgd(call, tensors);
    if (call.rounded)
      device_.view(call.rounded, {call.weights.elements}, Dtype::kBfloat16).copy_(tensors.weights);
  }

  void subtract(const codec::ConstValues& a, const codec::ConstValues& b,
                const codec::Values& out) override {
    if (out.elements == 0) return;
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    written(out).copy_(numbers(a).sub(numbers(b)));
  }

  void scale(double factor, const codec::Values& values) override {
    if (values.elements > 0) written(values).mul_(factor);
  }
  void outer_step(const OuterCall& call) override {
    if (call.outer.elements == 0) return;
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    const optim::OuterUpdate& rule = call.update;
    at::Tensor difference = numbers(call.sum);
    if (call.sent.elements > 0) difference = difference.sub(numbers(call.sent));
    if (call.fresh.elements > 0) difference = difference.add(numbers(call.fresh));
    at::Tensor velocity = written(call.velocity), outer = written(call.outer);
    difference = difference.div(static_cast<double>(rule.replicas) * rule.penalty);
    if (rule.gap > 0)
      difference.div_(velocity.abs().mul_(rule.learning_rate / rule.gap / rule.penalty).add_(1.0));
    velocity.mul_(rule.momentum).add_(difference);
    if (rule.clip > 0) velocity.clamp_(-rule.clip, rule.clip);
    outer.sub_(rule.nesterov ? difference.add(velocity, rule.momentum) : velocity,
               rule.learning_rate);
    written(call.local).mul_(rule.mixing).add_(outer, 1 - rule.mixing);
  }

  void exchange(const codec::Values& a, const codec::Values& b) override {
    if (a.elements == 0) return;
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    const at::Tensor kept = written(a).clone();
    written(a).copy_(written(b));
    written(b).copy_(kept);
  }

  void encode(const EncodeCall& call, std::span<uint8_t> encoded, double* not_finite) override {
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    const at::Tensor from = numbers(call.source);
    if (call.residual.empty()) {
      count(encode_numbers(call.spec, from, encoded), not_finite);
      return;
    }
    const int64_t elements = call.source.elements;
    at::Tensor residual = device_.view(call.residual.data(), {elements}, Dtype::kFloat32);
    const at::Tensor sum = from.to(at::kFloat).add(residual);
    const at::Tensor lost = encode_numbers(call.spec, sum, encoded);
    const at::Tensor missed = sum.sub(decoded(call.spec, encoded, elements, Dtype::kFloat32));
    const double beta = codec::Residual{}.averaging;
    residual.mul_(beta).add_(missed, 1 - beta);
    residual.copy_(at::where(lost.eq(0), residual, at::zeros({}, residual.options())));
    count(lost, not_finite);
  }

  void decode(const CodecSpec& spec, std::span<const uint8_t> encoded, const codec::Values& out,
              bool add) override {
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    const at::Tensor values = decoded(spec, encoded, out.elements, out.dtype);
    const at::Tensor target = numbers({out.data, out.dtype, out.elements});
    if (add)
      target.add_(values);
    else
      target.copy_(values);
  }

  void decode_sum(const codec::Pieces& from, const codec::Values& out) override {
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    at::Tensor sum;
    for (const std::span<const uint8_t> piece : from.pieces) {
      const at::Tensor values =
          decoded(from.spec, piece, from.elements, Dtype::kFloat32).to(at::kFloat);
      sum = sum.defined() ? sum.add(values) : values;
    }
    numbers({out.data, out.dtype, out.elements}).copy_(sum);
  }

 private:
  at::Tensor scalar_at(double* scalar) const { return device_.view(scalar, {}, Dtype::kFloat64); }
  at::Tensor numbers(const codec::ConstValues& values) const {
    return device_.view(values.data, {values.elements}, values.dtype);
  }
  at::Tensor written(const codec::Values& values) const {
    return device_.view(values.data, {values.elements}, values.dtype);
  }
  at::Tensor bytes(std::span<const uint8_t> encoded) const {
    return device_.view(encoded.data(), {static_cast<int64_t>(encoded.size())}, Dtype::kByte);
  }
  void count(const at::Tensor& lost, double* not_finite) const {
    if (not_finite) scalar_at(not_finite).add_(lost);
  }

  /// Returns how many are not finite, one number on the device; none of them for plain copies.
  at::Tensor encode_numbers(const CodecSpec& spec, const at::Tensor& from,
                            std::span<uint8_t> encoded) const {
    if (spec.kind == CodecKind::kNone) {
      device_.view(encoded.data(), {from.numel()}, dtype_of(from)).copy_(from);
      return at::isfinite(from).logical_not().sum();
    }
    if (spec.kind == CodecKind::kBfloat16) {
      put_bfloat16(from, encoded);
      return at::isfinite(from.to(at::kFloat)).logical_not().sum();
    }
    if (spec.kind == CodecKind::kFloat16) return put_float16(from, encoded);
    const EncodedTensor piece = encode_tensor(spec, from);
    bytes(encoded).copy_(piece.piece);
    return piece.non_finite;
  }

  static Dtype dtype_of(const at::Tensor& values) {
    if (values.scalar_type() == at::kDouble) return Dtype::kFloat64;
    if (values.scalar_type() == at::kHalf) return Dtype::kFloat16;
    return values.scalar_type() == at::kBFloat16 ? Dtype::kBfloat16 : Dtype::kFloat32;
  }

  /// What is not finite in fp16 becomes 0; returns how many those are.
  at::Tensor put_float16(const at::Tensor& from, std::span<uint8_t> encoded) const {
    const at::Tensor rounded = from.to(at::kHalf).to(at::kFloat), fits = at::isfinite(rounded);
    device_.view(encoded.data(), {from.numel()}, Dtype::kFloat16)
        .copy_(at::where(fits, rounded, at::zeros({}, rounded.options())));
    return fits.logical_not().sum();
  }

  /// What is not finite becomes 0; the rest saturates at the largest number of bf16.
  void put_bfloat16(const at::Tensor& from, std::span<uint8_t> encoded) const {
    constexpr double largest = 0x1.fep127;
    const at::Tensor narrow = from.to(at::kFloat);
    const at::Tensor finite =
        at::where(at::isfinite(narrow), narrow, at::zeros({}, narrow.options()));
    device_.view(encoded.data(), {from.numel()}, Dtype::kBfloat16)
        .copy_(finite.clamp(-largest, largest));
  }

  at::Tensor decoded(const CodecSpec& spec, std::span<const uint8_t> encoded, int64_t elements,
                     Dtype plain) const {
    if (spec.kind == CodecKind::kNone) return device_.view(encoded.data(), {elements}, plain);
    if (spec.kind == CodecKind::kBfloat16)
      return device_.view(encoded.data(), {elements}, Dtype::kBfloat16);
    if (spec.kind == CodecKind::kFloat16)
      return device_.view(encoded.data(), {elements}, Dtype::kFloat16);
    return decode_tensor(spec, bytes(encoded), elements);
  }

  tensor::Device& device_;
};

const Provides kArithmetic(
    make_tensor_arithmetic, +[](tensor::Device& device) -> std::unique_ptr<Arithmetic> {
      return std::make_unique<TensorArithmetic>(device);
    });

}  // namespace
}  // namespace strait::device
