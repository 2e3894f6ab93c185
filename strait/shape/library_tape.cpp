#include "strait/shape/library_tape.h"

#include <algorithm>
#include <utility>

namespace strait {

/// Memory of a tensor, for its life.
class LibraryTape::Storage {
 public:
  Storage(std::shared_ptr<int64_t> live, int64_t bytes) : live_(std::move(live)), bytes_(bytes) {
    *live_ += bytes_;
  }
  ~Storage() { *live_ -= bytes_; }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

 private:
  std::shared_ptr<int64_t> live_;
  int64_t bytes_;
};

void LibraryTape::take(int64_t bytes) { work_.bytes = std::max(work_.bytes, *live_ + bytes); }

LibraryTape::Tensor LibraryTape::fresh(int64_t bytes) {
  Tensor made;
  made.bytes_ = bytes;
  made.storage_ = std::make_shared<Storage>(live_, bytes);
  take(0);
  return made;
}

LibraryTape::Tensor LibraryTape::tensor(int64_t bytes, bool own) {
  if (own) return fresh(bytes);
  Tensor made;
  made.bytes_ = bytes;
  return made;
}

LibraryTape::Tensor LibraryTape::leaf(Tensor tensor) {
  tensor.node_ = static_cast<int>(nodes_.size());
  nodes_.push_back({});
  nodes_.back().is_leaf = true;
  return tensor;
}

LibraryTape::Tensor LibraryTape::run(const Operation& operation) {
  work_.calls += static_cast<double>(operation.calls);
  work_.activations += operation.activations;
  Tensor result;
  if (operation.view) {
    result = operation.inputs.front();
    result.dense_ = operation.dense;
    result.bytes_ = operation.bytes;
  } else {
    double passed = 0;
    if (!operation.product) {
      passed = static_cast<double>(operation.bytes + 2 * operation.scratch);
      for (const Tensor& input : operation.inputs) passed += static_cast<double>(input.bytes_);
    }
    work_.passed_bytes += passed;
    take(operation.scratch + operation.bytes);
    result = fresh(operation.bytes);
  }
  result.node_ = -1;
  const bool asked =
      std::ranges::any_of(operation.inputs, [](const Tensor& input) { return input.node_ >= 0; });
  if (!recording_ || !asked) return result;
  Node node;
  for (const Tensor& input : operation.inputs) {
    node.inputs.push_back(input.node_);
    node.input_bytes.push_back(input.bytes_);
  }
  node.operation = operation;
  node.operation.inputs.clear();
  if (operation.saves_result) node.operation.saved.push_back(result);
  result.node_ = static_cast<int>(nodes_.size());
  nodes_.push_back(std::move(node));
  return result;
}

void LibraryTape::add(Tensor& sum, Tensor gradient) {
  if (sum.bytes_ == 0) {
    sum = std::move(gradient);
    return;
  }
  work_.calls += 1;
  work_.passed_bytes += 3 * static_cast<double>(gradient.bytes_);
  sum = fresh(gradient.bytes_);
}

void LibraryTape::backward(Tensor result) {
  gradients_.assign(nodes_.size(), {});
  if (result.node_ < 0) return;
  gradients_[static_cast<size_t>(result.node_)] = tensor(result.bytes_);
  result = {};
  for (size_t at = nodes_.size(); at-- > 0;) {
    Node& node = nodes_[at];
    if (gradients_[at].bytes_ == 0) continue;
    if (node.is_leaf) {
      work_.calls += kCallsOfLeaf;
      continue;
    }
    Tensor given = std::exchange(gradients_[at], {});
    const Operation& operation = node.operation;
    // Of a product the gradients of both operands.
    work_.calls += static_cast<double>((operation.product ? 2 : 1) * operation.calls);
    work_.activations += operation.activations;
    const int64_t copied = operation.wants_dense && !given.dense_ ? given.bytes_ : 0;
    double passed = static_cast<double>(2 * copied);
    if (!operation.product) passed += static_cast<double>(2 * operation.backward_scratch);
    std::vector<Tensor> made(node.inputs.size());
    for (size_t i = 0; i < made.size(); ++i) {
      if (node.inputs[i] < 0) continue;
      const Gradient how = i < operation.gradients.size() ? operation.gradients[i] : Gradient::kOwn;
      if (how == Gradient::kSmall) passed += static_cast<double>(given.bytes_);
      if (how == Gradient::kSmall) made[i] = tensor(node.input_bytes[i]);
      if (how == Gradient::kPassed || how == Gradient::kPart) {
        made[i] = given;
        made[i].bytes_ = node.input_bytes[i];
        made[i].dense_ = given.dense_ && how == Gradient::kPassed;
      }
      if (how != Gradient::kOwn && how != Gradient::kPadded) continue;
      made[i] = fresh(node.input_bytes[i]);
      if (!operation.product) passed += static_cast<double>(made[i].bytes_ + given.bytes_);
    }
    if (!operation.product)
      for (const Tensor& kept : operation.saved) passed += static_cast<double>(kept.bytes_);
    work_.passed_bytes += passed;
    take(operation.backward_scratch + copied);
    node.operation = {};
    given = {};
    for (size_t i = 0; i < made.size(); ++i)
      if (node.inputs[i] >= 0)
        add(gradients_[static_cast<size_t>(node.inputs[i])], std::exchange(made[i], {}));
  }
}

}  // namespace strait
