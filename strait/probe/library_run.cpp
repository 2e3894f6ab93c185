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

class TensorRun final : public LibraryRun {
 public:
  TensorRun(LibraryPart part, Dtype dtype) : part_(part) {
    const at::TensorOptions options(tensor::scalar_type(dtype));
    switch (part) {
      case LibraryPart::kConvolutions:
        input_ = at::full({kImages, kChannels, kHeight, kHeight}, 0.5, options);
        weight_ = at::full({kChannels, kChannels, 3, 3}, 0.25, options);
        break;
      case LibraryPart::kActivations:
        input_ = at::full({kNumbers}, 0.5, options);
        break;
      case LibraryPart::kCalls:
        input_ = at::full({1}, 0.5, options);
    }
  }

  void run() override {
    model::use_threads(1);
    const at::AutoGradMode recording(true);
    std::vector<at::Tensor> leaves = {input_.detach().requires_grad_()};
    at::Tensor result = leaves.front();
    if (part_ == LibraryPart::kConvolutions) {
      leaves.push_back(weight_.detach().requires_grad_());
      result = at::conv2d(leaves[0], leaves[1], {}, at::IntArrayRef{1}, at::IntArrayRef{1});
    } else if (part_ == LibraryPart::kActivations) {
      result = at::silu(result);
    } else {
      for (int operation = 0; operation < kOperations; ++operation) result = at::silu(result);
    }
    torch::autograd::grad({result}, leaves, {result.detach()}, false, false, true);
  }

  double amount() const override {
    if (part_ == LibraryPart::kActivations) return 2.0 * kNumbers;
    if (part_ == LibraryPart::kCalls) return 2.0 * kOperations;
    return 6.0 * kImages * kHeight * kHeight * kWindow * kChannels * kChannels;
  }

 private:
  LibraryPart part_;
  at::Tensor input_, weight_;
};

const Provides kRun(
    make_library_run, +[](LibraryPart part, Dtype dtype) -> std::unique_ptr<LibraryRun> {
      return std::make_unique<TensorRun>(part, dtype);
    });

}  // namespace
}  // namespace strait::measure
