#include "strait/probe/library_run.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "strait/model/foreign_memory.h"
#include "strait/tensor/scalar_type.h"

namespace strait::measure {
namespace {

constexpr int64_t kImages = 4, kChannels = 32, kHeight = 16, kWindow = 9;
constexpr int64_t kNumbers = 1 << 16;
constexpr int kOperations = 32;  // of one number, each there and back

}  // namespace

struct LibraryRun::Tensors {
  at::Tensor input, weight;
};

LibraryRun::LibraryRun(LibraryPart part, Dtype dtype)
    : part_(part), tensors_(std::make_unique<Tensors>()) {
  const at::TensorOptions options(tensor::scalar_type(dtype));
  switch (part) {
    case LibraryPart::kConvolutions:
      tensors_->input = at::full({kImages, kChannels, kHeight, kHeight}, 0.5, options);
      tensors_->weight = at::full({kChannels, kChannels, 3, 3}, 0.25, options);
      break;
    case LibraryPart::kActivations:
      tensors_->input = at::full({kNumbers}, 0.5, options);
      break;
    case LibraryPart::kCalls:
      tensors_->input = at::full({1}, 0.5, options);
  }
}
LibraryRun::~LibraryRun() = default;

void LibraryRun::run() {
  model::use_threads(1);
  const at::AutoGradMode recording(true);
  std::vector<at::Tensor> leaves = {tensors_->input.detach().requires_grad_()};
  at::Tensor result = leaves.front();
  if (part_ == LibraryPart::kConvolutions) {
    leaves.push_back(tensors_->weight.detach().requires_grad_());
    result = at::conv2d(leaves[0], leaves[1], {}, at::IntArrayRef{1}, at::IntArrayRef{1});
  } else if (part_ == LibraryPart::kActivations) {
    result = at::silu(result);
  } else {
    for (int operation = 0; operation < kOperations; ++operation) result = at::silu(result);
  }
  torch::autograd::grad({result}, leaves, {result.detach()}, false, false, true);
}

double LibraryRun::amount() const {
  if (part_ == LibraryPart::kActivations) return 2.0 * kNumbers;
  if (part_ == LibraryPart::kCalls) return 2.0 * kOperations;
  return 6.0 * kImages * kHeight * kHeight * kWindow * kChannels * kChannels;
}

}  // namespace strait::measure
