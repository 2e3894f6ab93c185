#include "strait/model/autograd_block.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include <string_view>

#include "strait/base/errors.h"
#include "strait/model/decoder_blocks.h"
#include "strait/model/foreign_memory.h"

namespace strait::model {
namespace {

std::vector<int64_t> with_batch(int64_t batch, const std::vector<int64_t>& dims) {
  std::vector<int64_t> sizes = {batch};
  sizes.insert(sizes.end(), dims.begin(), dims.end());
  return sizes;
}

/// Tokens or targets as int64 [B, T].
at::Tensor indices(const int32_t* words, const Batch& batch) {
  return at::from_blob(const_cast<int32_t*>(words), {batch.batch, batch.tokens},
                       at::TensorOptions().dtype(at::kInt))
      .to(at::kLong);
}

}  // namespace

AutogradBlock::AutogradBlock(UnitShape unit, AutogradForm form, Dtype dtype,
                             AutogradFunction function)
    : unit_(std::move(unit)),
      form_(std::move(form)),
      dtype_(dtype),
      function_(std::move(function)) {}

/// What gradients are taken of: the parameters, and the input where it is an activation.
struct AutogradBlock::Leaves {
  std::vector<at::Tensor> parameters;
  at::Tensor input;
  bool by_input = false;

  Leaves(const AutogradBlock& block, const Call& call)
      : parameters(block.parameters(call)),
        input(block.input(call)),
        by_input(block.form_.input == AutogradInput::kActivation) {}
  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> list = parameters;
    if (by_input) list.push_back(input);
    return list;
  }
  void record() const {
    for (const at::Tensor& leaf : all()) leaf.requires_grad_();
  }
};

std::vector<at::Tensor> AutogradBlock::parameters(const Call& call) const {
  return parameter_views(unit_, call.weights, dtype_);
}

at::Tensor AutogradBlock::input(const Call& call) const {
  if (form_.input == AutogradInput::kActivation)
    return view(call.input, with_batch(call.batch->batch, form_.input_dims), dtype_);
  check_tokens(*call.batch, form_.vocabulary);
  if (form_.input == AutogradInput::kMade) return form_.make_input(call);
  const at::Tensor tokens = indices(call.batch->inputs, *call.batch);
  if (form_.input == AutogradInput::kTokens) return tokens;
  return tokens.to(tensor::scalar_type(dtype_)).unsqueeze(-1);
}

/// Failures of the module are the user's; the output has the form that the block was given.
at::Tensor AutogradBlock::call_function(const std::vector<at::Tensor>& parameters,
                                        const std::vector<at::Tensor>& inputs,
                                        int64_t batch) const {
  at::Tensor output;
  try {
    output = function_(parameters, inputs);
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    if (std::string_view(error.what()).find("allocate memory") != std::string_view::npos)
      throw NothingFits(fmt::format(
          "block {} needs more memory than the system gives for a micro-batch of {}: {}; a smaller "
          "train.micro_batch_size needs less",
          unit_.name, batch, error.what_without_backtrace()));
    throw UserError(fmt::format("the module of block {} failed: {}", unit_.name,
                                error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw UserError(fmt::format("the module of block {} failed: {}", unit_.name, error.what()));
  }
  const std::vector<int64_t> expected = with_batch(batch, form_.output_dims);
  if (!output.defined() || output.sizes() != at::IntArrayRef(expected))
    throw UserError(fmt::format(
        "the module of block {} gave an output of [{}]; expected [{}]", unit_.name,
        output.defined() ? fmt::format("{}", fmt::join(output.sizes(), ", ")) : "nothing",
        fmt::join(expected, ", ")));
  if (!output.is_floating_point())
    throw UserError(fmt::format("the module of block {} gave whole numbers", unit_.name));
  return output;
}

void AutogradBlock::forward(const Call& call, int, int) const {
  check_call(call, dtype_);
  use_threads(call.settings->threads);
  const at::AutoGradMode recording(false);
  const at::Tensor output = call_function(parameters(call), {input(call)}, call.batch->batch);
  view(call.output, output.sizes(), dtype_).copy_(output);
}

void AutogradBlock::backward(const Call& call) const {
  check_call(call, dtype_);
  use_threads(call.settings->threads);
  const Leaves leaves(*this, call);
  std::vector<at::Tensor> gradients;
  {
    const at::AutoGradMode recording(true);
    leaves.record();
    const at::Tensor output = call_function(leaves.parameters, {leaves.input}, call.batch->batch);
    const at::Tensor output_gradient =
        view(call.output_gradient, output.sizes(), dtype_).to(output.scalar_type());
    if (output.requires_grad())
      gradients =
          torch::autograd::grad({output}, leaves.all(), {output_gradient}, false, false, true);
  }
  add_gradients(call, leaves, gradients);
}

/// No gradients at all: the output depends on none of the leaves.
void AutogradBlock::add_gradients(const Call& call, const Leaves& leaves,
                                  const std::vector<at::Tensor>& gradients) const {
  const at::AutoGradMode recording(false);
  const auto defined = [&](size_t index) {
    return index < gradients.size() && gradients[index].defined();
  };
  for (size_t index = 0; index < unit_.parameters.size(); ++index)
    put_gradient(call, unit_.parameters[index], defined(index) ? gradients[index] : at::Tensor(),
                 dtype_);
  if (!call.input_gradient) return;
  const at::Tensor target = view(call.input_gradient, leaves.input.sizes(), dtype_);
  if (defined(leaves.parameters.size())) {
    target.copy_(gradients.back());
  } else {
    target.zero_();
  }
}

/// Of each token [B, T], at least fp32; 0 where it is not counted.
at::Tensor AutogradBlock::losses(const Call& call, const Leaves& leaves,
                                 const at::Tensor& targets) const {
  const at::Tensor within = targets.clamp_min(0);
  std::vector<at::Tensor> inputs = {leaves.input};
  if (form_.output == AutogradOutput::kLosses)
    inputs.push_back(form_.make_target ? form_.make_target(call) : within);
  at::Tensor output = call_function(leaves.parameters, inputs, call.batch->batch);
  if (dtype_ == Dtype::kBfloat16) output = output.to(at::kFloat);
  if (form_.output == AutogradOutput::kCrossEntropy)
    output = -output.log_softmax(-1).gather(-1, within.unsqueeze(-1)).squeeze(-1);
  return output.masked_fill(targets < 0, 0.0);
}

void AutogradBlock::forward_backward(const Call& call) const {
  if (form_.output == AutogradOutput::kActivation)
    throw UserError(fmt::format("block {} runs under autograd and is not a head", unit_.name));
  check_call(call, dtype_);
  check_targets(*call.batch, form_.vocabulary);
  use_threads(call.settings->threads);
  const Leaves leaves(*this, call);
  const at::Tensor targets = indices(call.batch->targets, *call.batch);
  const bool trains = call.gradient != nullptr;
  std::vector<at::Tensor> gradients;
  at::Tensor of_tokens;
  {
    const at::AutoGradMode recording(trains);
    if (trains) leaves.record();
    of_tokens = losses(call, leaves, targets);
    if (trains && of_tokens.requires_grad())
      gradients = torch::autograd::grad({of_tokens.sum() * call.settings->loss_scale}, leaves.all(),
                                        {}, false, false, true);
  }
  const at::Tensor values = of_tokens.detach().to(at::kDouble).contiguous();
  const double* value = values.data_ptr<double>();
  for (int64_t row = 0; row < values.numel(); ++row) {
    if (call.loss_sum) *call.loss_sum += value[row];
    if (call.loss_count && call.batch->targets[row] >= 0) ++*call.loss_count;
  }
  if (trains) add_gradients(call, leaves, gradients);
}

void AutogradBlock::backward_input(const Call&, int, int) const {
  throw UserError(
      fmt::format("block {} runs under autograd, which gives input and weight gradients together; "
                  "choose a schedule that does not split the backward, e.g. 1f1b",
                  unit_.name));
}
void AutogradBlock::backward_weight(const Call& call, int begin, int end) const {
  backward_input(call, begin, end);
}
void AutogradBlock::forward_cached(const Call&) const {
  throw UserError(
      fmt::format("block {} runs under autograd and keeps no key/value cache", unit_.name));
}

BlockSizes autograd_block_sizes(int64_t input_width, int64_t output_width, int64_t batch,
                                int64_t tokens, Dtype dtype) {
  BlockSizes sizes;
  sizes.input_bytes = batch * tokens * input_width * dtype_bytes(dtype);
  sizes.output_bytes = batch * tokens * output_width * dtype_bytes(dtype);
  return sizes;
}

}  // namespace strait::model
