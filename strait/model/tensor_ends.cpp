// Embedding and head in ATen operators, and the model made of tensor blocks.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "strait/base/errors.h"
#include "strait/model/tensor_blocks.h"
#include "strait/model/tensor_transformer.h"

namespace strait::model {

void refuse_split_backward(const std::string& block) {
  throw UserError(
      fmt::format("block {} runs in LibTorch's operators, whose backward gives input and "
                  "weight gradients together; choose a schedule that does not split the "
                  "backward, e.g. 1f1b",
                  block));
}

namespace {

/// The nearest number of the activations' type.
double rounded(const TensorTypes& types, double value) {
  return types.round(at::full({}, value, at::kDouble)).item<double>();
}

class TensorEmbeddingBlock : public Block {
 public:
  TensorEmbeddingBlock(const ModelShape& shape, int64_t index, const TensorTypes& types)
      : name_(shape.blocks[static_cast<size_t>(index)].name),
        types_(types),
        index_(index),
        context_(shape.options.context),
        width_(shape.options.width),
        dropout_(shape.options.dropout),
        scale_(rounded(types, embedding_scale(shape))),
        tied_(shape.options.tied_head) {
    const UnitShape& unit =
        shape.units[static_cast<size_t>(shape.blocks[static_cast<size_t>(index)].unit)];
    token_ = tensor_parameter(unit, "embedding.token.weight");
    position_ = tensor_parameter(unit, "embedding.position.weight");
  }

  void forward(const Call& call, int, int) const override { look_up(call, 0); }
  void forward_cached(const Call& call) const override { look_up(call, call.position); }
  void backward_input(const Call&, int, int) const override { refuse_split_backward(name_); }
  void backward_weight(const Call&, int, int) const override { refuse_split_backward(name_); }
  void forward_backward(const Call&) const override {
    throw InternalError("the embedding has no forward_backward; it belongs to the head");
  }

  void backward(const Call& call) const override {
    check_call(call, types_.narrow);
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    const Batch& batch = *call.batch;
    const int64_t count = batch.batch * batch.tokens;
    at::Tensor slope = types_.widen(types_.at(call.output_gradient, 0, {count, width_}));
    if (drops(call)) slope = slope.mul(dropout_factors(types_, site(call, 0), width_));
    if (scale_ != 1.0) slope = slope.mul(scale_);
    const at::Tensor tokens = types_.device.view(batch.inputs, {count}, Dtype::kInt32);
    // Sorted by token, so that sums do not depend on the order in which threads come.
    const at::Tensor token_slope =
        at::embedding_dense_backward(slope, tokens, token_.sizes[0], -1, false);
    // Tied: the head has overwritten the token gradient before.
    put(token_.gradient(types_, call), token_slope, call.accumulate || tied_);
    if (position_.offset < 0) return;
    const at::Tensor target = position_.gradient(types_, call);
    if (!call.accumulate) target.zero_();
    if (batch.document_starts) {
      target.add_(at::embedding_dense_backward(slope, document_positions(types_, batch),
                                               position_.sizes[0], -1, false));
      return;
    }
    target.narrow(0, 0, batch.tokens)
        .add_(slope.view({batch.batch, batch.tokens, width_}).sum({0}));
  }

 private:
  bool drops(const Call& call) const { return dropout_ > 0.0 && call.settings->training; }
  DropoutSite site(const Call& call, int64_t first_token) const {
    return {call.settings->seed,
            DropoutPlace::kEmbedding,
            static_cast<uint64_t>(index_),
            dropout_,
            call.batch->batch,
            call.batch->share(),
            first_token,
            call.batch->sequences};
  }

  void look_up(const Call& call, int64_t first_token) const {
    check_call(call, types_.narrow);
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    const Batch& batch = *call.batch;
    const int64_t count = batch.batch * batch.tokens;
    if (!batch.document_starts && first_token + batch.tokens > context_)
      throw UserError(fmt::format("a sequence of {} tokens is longer than model.shape.context = {}",
                                  first_token + batch.tokens, context_));
    const at::Tensor tokens = types_.device.view(batch.inputs, {count}, Dtype::kInt32);
    at::Tensor out = types_.at(call.output, 0, {count, width_});
    at::index_select_out(out, token_.weight(types_, call), 0, tokens);
    if (scale_ != 1.0) out.copy_(types_.widen(out).mul_(scale_));
    if (position_.offset >= 0 && batch.document_starts)
      out.add_(position_.weight(types_, call).index_select(0, document_positions(types_, batch)));
    else if (position_.offset >= 0)
      out.view({batch.batch, batch.tokens, width_})
          .add_(position_.weight(types_, call).narrow(0, first_token, batch.tokens));
    if (drops(call))
      out.copy_(types_.widen(out).mul_(dropout_factors(types_, site(call, first_token), width_)));
  }

  std::string name_;
  TensorTypes types_;
  int64_t index_, context_, width_;
  double dropout_;
  double scale_;  // of token rows, a number of the activations' type
  bool tied_;
  TensorParameter token_, position_;
};

class TensorHeadBlock : public Block {
 public:
  TensorHeadBlock(const ModelShape& shape, int64_t index, const TensorTypes& types)
      : types_(types),
        vocabulary_(shape.vocabulary),
        width_(shape.options.width),
        cap_(shape.options.logit_cap),
        norm_{!shape.style.rms_norm, shape.options.norm_eps} {
    const UnitShape& unit =
        shape.units[static_cast<size_t>(shape.blocks[static_cast<size_t>(index)].unit)];
    matrix_ =
        tensor_parameter(unit, shape.options.tied_head ? "embedding.token.weight" : "head.weight");
    layer_ = tensor_norm(unit, "head.norm", shape.style);
  }

  void forward(const Call&, int, int) const override { refuse(); }
  void backward_input(const Call&, int, int) const override { refuse(); }
  void backward_weight(const Call&, int, int) const override { refuse(); }
  void backward(const Call&) const override { refuse(); }

  void forward_backward(const Call& call) const override {
    check_call(call, types_.narrow);
    ensure(call.batch->targets != nullptr, "head: the batch has no targets");
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    const int64_t rows = call.batch->batch * call.batch->tokens;
    const int64_t row_bytes = vocabulary_ * dtype_bytes(types_.wide);
    const int64_t chunk = std::max<int64_t>(1, types_.device.logits_bytes() / row_bytes);
    for (int64_t begin = 0; begin < rows; begin += chunk)
      run_chunk(call, begin, std::min(chunk, rows - begin));
  }

  /// Logits of the last position of every sequence.
  void forward_cached(const Call& call) const override {
    check_call(call, types_.narrow);
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    const int64_t batch = call.batch->batch, tokens = call.batch->tokens;
    const at::Tensor input =
        types_.at(call.input, 0, {batch, tokens, width_}).select(1, tokens - 1).contiguous();
    const NormResult normed = norm_forward(types_, call, norm_, layer_, input);
    at::Tensor logits = types_.wide_at(call.logits, 0, {batch, vocabulary_});
    wide_product(types_, normed.out, matrix_.weight(types_, call).t(), logits, false);
    if (cap_ > 0.0) logits.div_(cap_).tanh_().mul_(cap_);
  }

 private:
  [[noreturn]] static void refuse() {
    throw InternalError("the head runs forward and backward at once: use forward_backward");
  }

  void run_chunk(const Call& call, int64_t begin, int64_t rows) const {
    const at::Tensor input = types_.at(call.input, begin * width_, {rows, width_});
    const at::Tensor matrix = matrix_.weight(types_, call);
    const NormResult normed = norm_forward(types_, call, norm_, layer_, input);
    at::Tensor logits = at::empty({rows, vocabulary_}, normed.rstd.options());
    wide_product(types_, normed.out, matrix.t(), logits, false);
    const at::Tensor slope = add_losses(call, begin, logits);
    if (!call.gradient) return;
    const bool accumulate = call.accumulate || begin > 0;
    wide_product(types_, slope.t(), normed.out, matrix_.gradient(types_, call), accumulate);
    types_.at(call.input_gradient, begin * width_, {rows, width_})
        .copy_(norm_backward(types_, call, layer_,
                             {normed, input, narrow_product(types_, slope, matrix), accumulate}));
  }

  /// Adds the chunk's losses; gives the gradient of the logits, made in their memory where they are
  /// not wide.
  at::Tensor add_losses(const Call& call, int64_t begin, at::Tensor& logits) const {
    const at::Tensor targets =
        types_.device.view(call.batch->targets + begin, {logits.size(0)}, Dtype::kInt32)
            .to(at::kLong)
            .unsqueeze(1);
    const at::Tensor counted = targets.ge(0), at_target = targets.clamp_min(0);
    at::Tensor slope;  // of the cap
    if (cap_ > 0.0) {
      logits.div_(cap_).tanh_();
      if (call.gradient) slope = logits.square().neg_().add_(1.0);
      logits.mul_(cap_);
    }
    const at::Tensor log_sum_exp = at::logsumexp(logits, {1}, true);
    const at::Tensor losses = log_sum_exp.sub(logits.gather(1, at_target)).to(at::kDouble);
    if (call.loss_sum)
      types_.device.view(call.loss_sum, {}, Dtype::kFloat64)
          .add_(at::where(counted, losses, at::zeros({}, losses.options())).sum());
    if (call.loss_count) *call.loss_count += counted.sum().item<int64_t>();
    if (!call.gradient) return {};
    logits.sub_(log_sum_exp).exp_();
    logits.scatter_add_(1, at_target,
                        at::full({1, 1}, -1.0, logits.options()).expand_as(at_target));
    logits.mul_(counted.to(logits.scalar_type()).mul_(call.settings->loss_scale));
    if (slope.defined()) logits.mul_(slope);
    return types_.round(logits);
  }

  TensorTypes types_;
  int64_t vocabulary_, width_;
  double cap_;  // of logits; 0: none
  TensorNorm norm_;
  TensorParameter matrix_;
  TensorLayer layer_;
};

/// Rows of cosines, then sines, on the device.
at::Tensor angle_table(const ModelShape& shape, const RopeOptions& rope, const TensorTypes& types) {
  const int64_t half = shape.options.head_elements() / 2;
  const std::vector<double> frequencies = rotary_frequencies(rope, 2 * half);
  const at::Tensor positions = at::arange(0, shape.options.context, at::kDouble).unsqueeze(1);
  const at::Tensor angles = positions.mul(at::tensor(frequencies, at::kDouble).unsqueeze(0));
  const at::Tensor table = types.widen(at::cat({angles.cos(), angles.sin()}, 1));
  return table.to(types.device.view(nullptr, {0}, types.wide).device());
}

void use_blocks(Model& model, tensor::Device& device, Dtype dtype) {
  const TensorTypes types(device, dtype);
  const ModelShape& shape = model.shape();
  std::array<at::Tensor, 2> angles;  // of blocks without, with a window
  for (size_t at = 0; at < shape.blocks.size(); ++at) {
    const int64_t index = static_cast<int64_t>(at);
    if (shape.blocks[at].kind == BlockKind::kEmbedding)
      model.set_block(index, std::make_unique<TensorEmbeddingBlock>(shape, index, types));
    if (shape.blocks[at].kind == BlockKind::kTransformer) {
      const LayerForm form = layer_form(shape, index);
      at::Tensor& table = angles[form.window > 0 ? 1 : 0];
      if (shape.style.rotary && !table.defined()) table = angle_table(shape, form.rope, types);
      model.set_block(index, std::make_unique<TensorTransformerBlock>(shape, index, types, table));
    }
    if (shape.blocks[at].kind == BlockKind::kHead)
      model.set_block(index, std::make_unique<TensorHeadBlock>(shape, index, types));
  }
}

const Provides kBlocks(use_tensor_blocks, use_blocks);

}  // namespace
}  // namespace strait::model
