#include "strait/model/autograd_block.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "strait/base/errors.h"
#include "strait/model/decoder_blocks.h"

namespace strait::model {
namespace {

at::ScalarType scalar_type(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? at::kDouble : at::kFloat;
}

/// A view of foreign memory; LibTorch only reads what the block hands in as const.
at::Tensor view(const void* data, at::IntArrayRef sizes, Dtype dtype) {
  return at::from_blob(const_cast<void*>(data), sizes,
                       at::TensorOptions().dtype(scalar_type(dtype)));
}

void* at_element(void* data, int64_t offset, Dtype dtype) {
  return static_cast<char*>(data) + offset * dtype_bytes(dtype);
}

}  // namespace

AutogradBlock::AutogradBlock(UnitShape unit, int64_t input_width, int64_t output_width, Dtype dtype,
                             AutogradFunction function)
    : unit_(std::move(unit)),
      input_width_(input_width),
      output_width_(output_width),
      dtype_(dtype),
      function_(std::move(function)) {}

std::vector<at::Tensor> AutogradBlock::parameters(const Call& call) const {
  std::vector<at::Tensor> list;
  for (const ParameterShape& parameter : unit_.parameters) {
    list.push_back(view(at_element(const_cast<void*>(call.weights), parameter.offset, dtype_),
                        parameter.dims, dtype_));
  }
  return list;
}

at::Tensor AutogradBlock::input(const Call& call) const {
  return view(call.input, {call.batch->batch, call.batch->tokens, input_width_}, dtype_);
}

at::Tensor AutogradBlock::checked_output(const Call& call, const at::Tensor& output) const {
  const std::vector<int64_t> expected = {call.batch->batch, call.batch->tokens, output_width_};
  if (output.sizes() == at::IntArrayRef(expected)) return output;
  throw UserError(
      fmt::format("the module of block {} gave an output of {} elements; expected [{}, {}, {}]",
                  unit_.name, output.numel(), expected[0], expected[1], expected[2]));
}

void AutogradBlock::forward(const Call& call, int, int) const {
  check_call(call, dtype_);
  at::set_num_threads(call.settings->threads);
  const at::AutoGradMode recording(false);
  const at::Tensor output = checked_output(call, function_(parameters(call), input(call)));
  view(call.output, output.sizes(), dtype_).copy_(output);
}

void AutogradBlock::backward(const Call& call) const {
  check_call(call, dtype_);
  at::set_num_threads(call.settings->threads);
  std::vector<at::Tensor> leaves = parameters(call);
  leaves.push_back(input(call));
  std::vector<at::Tensor> gradients;
  {
    const at::AutoGradMode recording(true);
    for (at::Tensor& leaf : leaves) leaf.requires_grad_();
    const at::Tensor output =
        checked_output(call, function_({leaves.begin(), leaves.end() - 1}, leaves.back()));
    const at::Tensor output_gradient = view(call.output_gradient, output.sizes(), dtype_);
    gradients = torch::autograd::grad({output}, leaves, {output_gradient}, false, false, true);
  }
  const at::AutoGradMode recording(false);
  for (size_t index = 0; index < unit_.parameters.size(); ++index) {
    const ParameterShape& parameter = unit_.parameters[index];
    const at::Tensor target =
        view(at_element(call.gradient, parameter.offset, dtype_), parameter.dims, dtype_);
    if (!call.accumulate) target.zero_();
    if (gradients[index].defined()) target.add_(gradients[index]);
  }
  if (!call.input_gradient) return;
  const at::Tensor target = view(call.input_gradient, leaves.back().sizes(), dtype_);
  if (gradients.back().defined()) {
    target.copy_(gradients.back());
  } else {
    target.zero_();
  }
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
void AutogradBlock::forward_backward(const Call&) const {
  throw UserError(fmt::format("block {} runs under autograd and is not a head", unit_.name));
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
