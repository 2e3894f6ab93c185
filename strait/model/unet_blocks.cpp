#include "strait/model/unet_blocks.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/kernel/normal.h"
#include "strait/model/autograd_block.h"
#include "strait/model/decoder_blocks.h"
#include "strait/model/foreign_memory.h"
#include "strait/model/unet_layers.h"
#include "strait/tensor/scalar_type.h"

namespace strait::model {
namespace {

using at::Tensor;

// Ho et al. 2020, section 4, whose process has 1,000 steps; with fewer each adds as much more, so
// that an image becomes noise all the same (Nichol and Dhariwal 2021, whose most is this one).
constexpr double kFirstNoise = 1e-4, kLastNoise = 0.02, kNoiseSteps = 1000, kMostNoise = 0.999;

/// What a call's images are turned into, and what is asked about them.
class Draws {
 public:
  Draws(const Unet& unet, const Call& call) : unet_(unet), batch_(*call.batch) {
    ensure(batch_.sequences != nullptr, "a U-Net draws noise for numbered sequences");
    for (int64_t row = 0; row < batch_.batch; ++row)
      draws_.push_back(draw_diffusion(unet.options, call.settings->seed, call.settings->training,
                                      batch_.sequences[row]));
  }

  Tensor noise() const {
    const int64_t elements = unet_.image().elements();
    const Tensor all = at::empty({batch_.batch, elements}, at::kDouble);
    for (int64_t row = 0; row < batch_.batch; ++row) {
      kernel::NormalCall<double> call;
      call.key = draws_[static_cast<size_t>(row)].noise_key;
      call.count = elements;
      call.out = all.data_ptr<double>() + row * elements;
      kernel::normal(call);
    }
    return all;
  }

  Tensor noisy_images(const std::vector<double>& kept) const {
    const Tensor levels =
        at::from_blob(const_cast<int32_t*>(batch_.inputs), {batch_.batch, unet_.image().elements()},
                      at::TensorOptions(at::kInt))
            .to(at::kDouble);
    std::vector<int64_t> steps;
    std::vector<double> signal;
    for (const Diffusion& draw : draws_) {
      steps.push_back(draw.step);
      signal.push_back(kept[static_cast<size_t>(draw.step)]);
    }
    const Tensor share = at::tensor(signal, at::kDouble).unsqueeze(1);
    const Tensor images = levels * (2.0 / (kPixelLevels - 1)) - 1.0;
    return at::cat({share.sqrt() * images + (1.0 - share).sqrt() * noise(),
                    step_waves(steps, unet_.options.channels.front())},
                   1);
  }

 private:
  const Unet& unet_;
  const Batch& batch_;
  std::vector<Diffusion> draws_;
};

/// Losses of numbers that are counted [B, T], of the last block's squared errors.
Tensor counted_losses(const Call& call, const Tensor& errors) {
  const Tensor targets = at::from_blob(const_cast<int32_t*>(call.batch->targets), errors.sizes(),
                                       at::TensorOptions(at::kInt));
  return errors.masked_fill(targets < 0, 0.0);
}

/// A block as one rank of x and y has it.
class RankBlock : public Block, public SharedUnetBlock {
 public:
  RankBlock(const ModelShape& shape, int64_t index, UnetFunctions functions, Dtype dtype)
      : functions_(std::move(functions)),
        unit_(shape.units[static_cast<size_t>(shape.blocks[static_cast<size_t>(index)].unit)]),
        name_(shape.blocks[static_cast<size_t>(index)].name),
        names_(unit_, name_),
        kept_(kept_signal(functions_.unet().options.diffusion_steps)),
        dtype_(dtype) {}

  void run(UnetValue value, bool backward, const Call& call,
           const UnetBuffers& buffers) const override {
    check_call(call, dtype_);
    use_threads(call.settings->threads);
    const std::vector<Tensor> weights = parameter_views(unit_, call.weights, dtype_);
    UnetTensors kept;
    {
      const at::AutoGradMode recording(false);
      kept = kept_values(call, buffers);
    }
    if (!backward) kept[static_cast<size_t>(value)] = Tensor();  // it is to be made
    const bool loss = value == UnetValue::kOutput && functions_.block().step == UnetStep::kLeave;
    if (backward) return differentiate(value, loss, call, buffers, weights, kept);
    const at::AutoGradMode recording(false);
    const UnetWeights of = names_.with(weights);
    if (loss) return add_losses(call, losses(call, of, kept));
    const Tensor made = functions_.make(value, of, call.part.y, kept);
    void* const target = value == UnetValue::kOutput ? call.output : of_value(buffers, value).data;
    view(target, made.sizes(), type_of(value)).copy_(made);
  }

  void forward(const Call&, int, int) const override { refuse(); }
  void backward_input(const Call&, int, int) const override { refuse(); }
  void backward_weight(const Call&, int, int) const override { refuse(); }
  void backward(const Call&) const override { refuse(); }
  void forward_backward(const Call&) const override { refuse(); }
  void forward_cached(const Call&) const override { refuse(); }

 private:
  [[noreturn]] void refuse() const {
    throw InternalError("block " + name_ + " is shared and runs in parts");
  }
  const UnetParts& parts() const { return functions_.parts(); }
  static const UnetBuffer& of_value(const UnetBuffers& buffers, UnetValue value) {
    return buffers.values[static_cast<size_t>(value)];
  }
  static const UnetBuffer& of_gradient(const UnetBuffers& buffers, UnetValue value) {
    return buffers.gradients[static_cast<size_t>(value)];
  }
  Dtype type_of(UnetValue value) const {
    return value == UnetValue::kOutput ? dtype_ : UnetParts::kept_dtype(value, dtype_);
  }
  Tensor rows(const Call& call, const void* data, int64_t elements, Dtype dtype) const {
    return view(data, {call.batch->batch, elements}, dtype);
  }

  /// What an op reads: its input, and what was kept.
  UnetTensors kept_values(const Call& call, const UnetBuffers& buffers) const {
    UnetTensors kept;
    Tensor& input = kept[static_cast<size_t>(UnetValue::kInput)];
    if (functions_.block().step == UnetStep::kEnter) {
      check_tokens(*call.batch, kPixelLevels);
      input = Draws(functions_.unet(), call).noisy_images(kept_).to(tensor::scalar_type(dtype_));
    } else if (call.input != nullptr) {
      input = rows(call, call.input, functions_.input_elements(), dtype_);
    }
    for (int number = 0; number < kNumUnetValues; ++number) {
      const auto value = static_cast<UnetValue>(number);
      if (const void* data = of_value(buffers, value).data)
        kept[static_cast<size_t>(number)] =
            rows(call, data, parts().elements(value), type_of(value));
    }
    return kept;
  }

  Tensor losses(const Call& call, const UnetWeights& weights, UnetTensors& known) const {
    check_targets(*call.batch, kPixelLevels);
    const Tensor predicted = functions_.make(UnetValue::kPredicted, weights, call.part.y, known);
    const Tensor noise =
        Draws(functions_.unet(), call).noise().to(tensor::scalar_type(wide_dtype(dtype_)));
    return counted_losses(call, functions_.losses(weights, predicted, noise));
  }
  void add_losses(const Call& call, const Tensor& losses) const {
    const Tensor values = losses.detach().to(at::kDouble).contiguous();
    const double* value = values.data_ptr<double>();
    for (int64_t row = 0; call.loss_sum && row < values.numel(); ++row)
      *call.loss_sum += value[row];
  }

  /// From the gradient of a value, or the loss, those of what it is made of.
  void differentiate(UnetValue value, bool loss, const Call& call, const UnetBuffers& buffers,
                     const std::vector<Tensor>& weights, UnetTensors kept) const {
    UnetTensors known;
    std::vector<Tensor> leaves;
    const std::vector<UnetValue> sources = make_leaves(value, call, weights, kept, known);
    for (const UnetValue source : sources) leaves.push_back(known[static_cast<size_t>(source)]);
    const std::vector<size_t> own = parameters_of(value);
    for (const size_t parameter : own) leaves.push_back(weights[parameter]);
    std::vector<Tensor> gradients;
    {
      const at::AutoGradMode recording(true);
      for (const Tensor& leaf : leaves) leaf.requires_grad_();
      const UnetWeights of = names_.with(weights);
      const Tensor made =
          loss ? losses(call, of, known) : functions_.make(value, of, call.part.y, known);
      gradients =
          loss ? torch::autograd::grad({made.sum() * call.settings->loss_scale}, leaves, {}, false,
                                       false, true)
               : torch::autograd::grad({made}, leaves, {gradient_of(value, call, buffers, made)},
                                       false, false, true);
      if (loss) add_losses(call, made);
    }
    const at::AutoGradMode recording(false);
    for (size_t i = 0; i < own.size(); ++i)
      put_gradient(call, unit_.parameters[own[i]], gradients[sources.size() + i], dtype_);
    for (size_t i = 0; i < sources.size(); ++i)
      put_gradient_of(sources[i], leaves[i], gradients[i], call, buffers);
  }

  /// The leaves of a value, apart from how they are made.
  std::vector<UnetValue> make_leaves(UnetValue value, const Call& call,
                                     const std::vector<Tensor>& weights, UnetTensors& kept,
                                     UnetTensors& known) const {
    const at::AutoGradMode recording(false);
    const UnetValueSet set = parts().leaves(value);
    std::vector<UnetValue> leaves;
    for (size_t number = 0; number < set.size(); ++number) {
      if (!set[number]) continue;
      leaves.push_back(static_cast<UnetValue>(number));
      known[number] =
          functions_.make(leaves.back(), names_.with(weights), call.part.y, kept).detach();
    }
    return leaves;
  }

  std::vector<size_t> parameters_of(UnetValue value) const {
    const UnetValueSet within = parts().inlined(value);
    std::vector<size_t> own;
    for (size_t i = 0; i < unit_.parameters.size(); ++i) {
      const std::string name = unit_.parameters[i].name.substr(name_.size() + 1);
      if (within[static_cast<size_t>(functions_.block().parameters.at(name))]) own.push_back(i);
    }
    return own;
  }

  Tensor gradient_of(UnetValue value, const Call& call, const UnetBuffers& buffers,
                     const Tensor& made) const {
    const void* data =
        value == UnetValue::kOutput ? call.output_gradient : of_gradient(buffers, value).data;
    const Dtype dtype =
        value == UnetValue::kOutput ? dtype_ : UnetParts::gradient_dtype(value, dtype_);
    return view(data, made.sizes(), dtype).to(made.scalar_type());
  }

  /// An undefined gradient is zero.
  void put_gradient_of(UnetValue value, const Tensor& leaf, const Tensor& gradient,
                       const Call& call, const UnetBuffers& buffers) const {
    const bool input = value == UnetValue::kInput;
    void* const data = input ? call.input_gradient : of_gradient(buffers, value).data;
    if (data == nullptr) return;  // nobody asks, in front of the first block
    const bool adds = input ? buffers.adds_input : of_gradient(buffers, value).adds;
    const Tensor target =
        view(data, leaf.sizes(), input ? dtype_ : UnetParts::gradient_dtype(value, dtype_));
    if (!adds) target.zero_();
    if (gradient.defined()) target.add_(gradient);
  }

  UnetFunctions functions_;
  UnitShape unit_;
  std::string name_;
  UnetWeights names_;
  std::vector<double> kept_;
  Dtype dtype_;
};

}  // namespace

Diffusion draw_diffusion(const UnetOptions& options, uint64_t seed, bool training,
                         int64_t sequence) {
  const RandomStream stream(seed, training ? "unet.training" : "unet.validation",
                            static_cast<uint64_t>(sequence));
  return {mix64(stream.key()),
          static_cast<int64_t>(stream.below(0, static_cast<uint64_t>(options.diffusion_steps)))};
}

std::vector<double> kept_signal(int64_t steps) {
  std::vector<double> kept;
  const double shorter = kNoiseSteps / static_cast<double>(steps);
  double product = 1.0;
  for (int64_t step = 0; step < steps; ++step) {
    const double along = steps > 1 ? static_cast<double>(step) / static_cast<double>(steps - 1) : 1;
    const double noise = kFirstNoise + (kLastNoise - kFirstNoise) * along;
    product *= 1.0 - std::min(kMostNoise, noise * shorter);
    kept.push_back(product);
  }
  return kept;
}

namespace {

std::unique_ptr<Block> make_block(const ModelShape& shape, int64_t index, Dtype dtype) {
  const auto at = static_cast<size_t>(index);
  const ModuleChain& chain = *shape.modules;
  const std::shared_ptr<const Unet> unet = chain.unet;
  UnetFunctions functions(unet, index, shape.x, shape.y);
  if (functions.parts().is_shared())
    return std::make_unique<RankBlock>(shape, index, std::move(functions), dtype);
  const UnetStep step = functions.block().step;
  const UnitShape& unit = shape.units[static_cast<size_t>(shape.blocks[at].unit)];
  AutogradForm form;
  form.vocabulary = chain.vocabulary;
  form.output_dims = chain.blocks[at].output;
  if (index > 0) form.input_dims = chain.blocks[at - 1].output;
  if (step == UnetStep::kEnter) {
    form.input = AutogradInput::kMade;
    form.make_input = [unet, kept = kept_signal(unet->options.diffusion_steps),
                       type = tensor::scalar_type(dtype)](const Call& call) {
      return Draws(*unet, call).noisy_images(kept).to(type);
    };
  }
  if (step == UnetStep::kLeave) {
    form.output = AutogradOutput::kLosses;
    form.make_target = [unet, wide = tensor::scalar_type(wide_dtype(dtype))](const Call& call) {
      return Draws(*unet, call).noise().to(wide);
    };
  }
  return std::make_unique<AutogradBlock>(
      unit, form, dtype,
      [functions, names = UnetWeights(unit, chain.blocks[at].name)](
          const std::vector<Tensor>& parameters, const std::vector<Tensor>& inputs) {
        const UnetWeights weights = names.with(parameters);
        const bool leaves = functions.block().step == UnetStep::kLeave;
        UnetTensors known;
        known[static_cast<size_t>(UnetValue::kInput)] = inputs.front();
        const Tensor made =
            functions.make(leaves ? UnetValue::kPredicted : UnetValue::kOutput, weights, 0, known);
        return leaves ? functions.losses(weights, made, inputs.back()) : made;
      });
}

const Provides kBlocks(make_unet_block, make_block);

}  // namespace
}  // namespace strait::model
