#include "strait/tensor/tensor_sum.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "strait/base/errors.h"

namespace strait::tensor {
namespace {

/// The sum in a tensor of its own type, which never shares memory with a source; bf16 in fp32.
at::Tensor sum_of(Device& device, const OrderedSum& sum) {
  const bool narrow = sum.dtype == Dtype::kBfloat16;
  const auto source = [&](size_t k) {
    const at::Tensor all = device.view(sum.sources[k], {sum.elements}, sum.dtype);
    return narrow ? all.to(at::kFloat) : all;
  };
  if (sum.sources.size() == 1) return source(0);
  at::Tensor total = at::add(source(0), source(1));
  for (size_t k = 2; k < sum.sources.size(); ++k) total.add_(source(k));
  return total;
}

void sum_into(Device& device, const OrderedSum& sum) {
  if (sum.dtype == Dtype::kFloat16)
    throw UserError("no sum of fp16; the nearest type that can be summed is fp32");
  if (sum.elements == 0) return;
  const c10::NoGradGuard no_gradients;
  at::Tensor target = device.view(sum.destination, {sum.elements}, sum.dtype);
  const at::Tensor total = sum_of(device, sum);
  if (!sum.accumulate)
    target.copy_(total);
  else if (sum.dtype == Dtype::kBfloat16)
    target.copy_(target.to(at::kFloat).add_(total));
  else
    target.add_(total);
}

const Provides kSum(sum_tensors, sum_into);

}  // namespace
}  // namespace strait::tensor
