#include "strait/model/unet_blocks.h"

#include <ATen/ATen.h>
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

constexpr double kFirstNoise = 1e-4, kLastNoise = 0.02;  // Ho et al. 2020, section 4

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

/// A block with a residual block as one rank of x has it.
class RankBlock : public Block, public SharedUnetBlock {
 public:
  RankBlock(const ModelShape& shape, int64_t index, Dtype dtype)
      : unet_(shape.modules->unet),
        index_(index),
        x_(shape.x),
        unit_(shape.units[static_cast<size_t>(shape.blocks[static_cast<size_t>(index)].unit)]),
        name_(shape.blocks[static_cast<size_t>(index)].name),
        names_(unit_, name_),
        dtype_(dtype) {}

  void run(UnetPhase phase, const Call& call, const UnetValues& values) const override {
    check_call(call, dtype_);
    use_threads(call.settings->threads);
    const int64_t batch = call.batch->batch;
    const std::vector<Tensor> weights = parameter_views(unit_, call.weights, dtype_);
    const auto rows = [&](const void* data, int64_t elements, Dtype dtype) {
      return view(data, {batch, elements}, dtype);
    };
    const Tensor input =
        rows(call.input, elements_of(block().entering, block().takes_time), dtype_);
    const auto sum = [&](const void* data) {
      return rows(data, unet_->branch(index_).elements(), wide_dtype(dtype_));
    };
    const auto normed = [&](const void* data) {
      return rows(data, unet_->normed_elements(index_), dtype_);
    };
    const auto output = [&](const void* data) {
      return rows(data, elements_of(block().leaving, block().leaves_time), dtype_);
    };
    const auto make_normed = [&](const UnetWeights& of) {
      return normed_input(of, block(), input);
    };
    const auto make_branch = [&](const UnetWeights& of, const Tensor& from) {
      return branch(of, *unet_, index_, x_, from);
    };
    switch (phase) {
      case UnetPhase::kPart: {
        const at::AutoGradMode recording(false);
        const UnetWeights of = names_.with(weights);
        sum(values.branch).copy_(make_branch(of, make_normed(of)));
        return;
      }
      case UnetPhase::kJoin: {
        const at::AutoGradMode recording(false);
        output(call.output).copy_(join(names_.with(weights), block(), input, sum(values.branch)));
        return;
      }
      case UnetPhase::kJoinGradient: {
        const Tensor branch = sum(values.branch).to(input.scalar_type());
        const std::vector<Tensor> gradients = differentiate(
            call, UnetPiece::kJoin, weights, {input, branch}, output(call.output_gradient),
            [&](const UnetWeights& of) { return join(of, block(), input, branch); });
        view(call.input_gradient, input.sizes(), dtype_).copy_(gradients[0]);
        view(values.branch_gradient, branch.sizes(), dtype_).copy_(gradients[1]);
        return;
      }
      case UnetPhase::kPartGradient: {
        Tensor from;
        {
          const at::AutoGradMode recording(false);
          from = make_normed(names_.with(weights));
        }
        const Tensor gradient =
            rows(values.branch_gradient, unet_->branch(index_).elements(), dtype_);
        const std::vector<Tensor> gradients =
            differentiate(call, UnetPiece::kBranch, weights, {from}, gradient,
                          [&](const UnetWeights& of) { return make_branch(of, from); });
        normed(values.normed_gradient).copy_(gradients[0]);
        return;
      }
      case UnetPhase::kNormGradient: {
        const std::vector<Tensor> gradients = differentiate(
            call, UnetPiece::kNorm, weights, {input}, normed(values.normed_gradient), make_normed);
        view(call.input_gradient, input.sizes(), dtype_).add_(gradients[0]);
        return;
      }
    }
  }

  void forward(const Call&, int, int) const override { refuse(); }
  void backward_input(const Call&, int, int) const override { refuse(); }
  void backward_weight(const Call&, int, int) const override { refuse(); }
  void backward(const Call&) const override { refuse(); }
  void forward_backward(const Call&) const override { refuse(); }
  void forward_cached(const Call&) const override { refuse(); }

 private:
  [[noreturn]] void refuse() const {
    throw InternalError("block " + name_ + " is shared and runs in phases");
  }
  const UnetBlock& block() const { return unet_->blocks[static_cast<size_t>(index_)]; }
  int64_t elements_of(const std::vector<UnetMap>& maps, bool has_time) const {
    int64_t elements = has_time ? unet_->time_width() : 0;
    for (const UnetMap& map : maps) elements += map.elements();
    return elements;
  }

  /// Puts the gradients of the parameters of a piece where they belong; returns those of `values`.
  template <class Function>
  std::vector<Tensor> differentiate(const Call& call, UnetPiece piece,
                                    const std::vector<Tensor>& weights,
                                    const std::vector<Tensor>& values, const Tensor& gradient,
                                    const Function& function) const {
    std::vector<Tensor> leaves = values;
    std::vector<size_t> own;
    for (size_t i = 0; i < unit_.parameters.size(); ++i)
      if (piece_of(unit_.parameters[i].name.substr(name_.size() + 1)) == piece) {
        own.push_back(i);
        leaves.push_back(weights[i]);
      }
    std::vector<Tensor> gradients;
    {
      const at::AutoGradMode recording(true);
      for (const Tensor& leaf : leaves) leaf.requires_grad_();
      const Tensor made = function(names_.with(weights));
      gradients = torch::autograd::grad({made}, leaves, {gradient.to(made.scalar_type())}, false,
                                        false, true);
    }
    const at::AutoGradMode recording(false);
    for (size_t i = 0; i < own.size(); ++i)
      put_gradient(call, unit_.parameters[own[i]], gradients[values.size() + i], dtype_);
    gradients.resize(values.size());
    return gradients;
  }

  std::shared_ptr<const Unet> unet_;
  int64_t index_, x_;
  UnitShape unit_;
  std::string name_;
  UnetWeights names_;
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
  double product = 1.0;
  for (int64_t step = 0; step < steps; ++step) {
    const double along = steps > 1 ? static_cast<double>(step) / static_cast<double>(steps - 1) : 0;
    product *= 1.0 - (kFirstNoise + (kLastNoise - kFirstNoise) * along);
    kept.push_back(product);
  }
  return kept;
}

std::unique_ptr<Block> make_unet_block(const ModelShape& shape, int64_t index, Dtype dtype) {
  const auto at = static_cast<size_t>(index);
  const ModuleChain& chain = *shape.modules;
  const std::shared_ptr<const Unet> unet = chain.unet;
  if (shape.x > 1 && unet->has_residual(index))
    return std::make_unique<RankBlock>(shape, index, dtype);
  const UnetBlock& block = unet->blocks.at(at);
  const UnitShape& unit = shape.units[static_cast<size_t>(shape.blocks[at].unit)];
  AutogradForm form;
  form.vocabulary = chain.vocabulary;
  form.output_dims = chain.blocks[at].output;
  if (index > 0) form.input_dims = chain.blocks[at - 1].output;
  if (block.step == UnetStep::kEnter) {
    form.input = AutogradInput::kMade;
    form.make_input = [unet, kept = kept_signal(unet->options.diffusion_steps),
                       type = tensor::scalar_type(dtype)](const Call& call) {
      return Draws(*unet, call).noisy_images(kept).to(type);
    };
  }
  if (block.step == UnetStep::kLeave) {
    form.output = AutogradOutput::kLosses;
    form.make_target = [unet, wide = tensor::scalar_type(wide_dtype(dtype))](const Call& call) {
      return Draws(*unet, call).noise().to(wide);
    };
  }
  return std::make_unique<AutogradBlock>(
      unit, form, dtype,
      [unet, &block, index, names = UnetWeights(unit, chain.blocks[at].name)](
          const std::vector<Tensor>& parameters, const std::vector<Tensor>& inputs) {
        const UnetWeights weights = names.with(parameters);
        const Tensor& input = inputs.front();
        if (block.step == UnetStep::kEnter) return enter(weights, *unet, input);
        if (block.step == UnetStep::kLeave) return leave(weights, block, input, inputs.back());
        return join(weights, block, input,
                    branch(weights, *unet, index, 1, normed_input(weights, block, input)));
      });
}

}  // namespace strait::model
