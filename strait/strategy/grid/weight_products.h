// Which products of a block's backward wait for nobody, and can stand beside a sum over ranks.
// Internal to the pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "strait/draft/draft.h"
#include "strait/shape/segment.h"
#include "strait/shape/shape.h"

namespace strait::strategy {

/// The gradients of a block's four matrices in one visit, taken out of its ops for the weights so
/// that each can begin as soon as its backward for inputs has left what it needs.
class WeightProducts {
 public:
  WeightProducts(const draft::Visit& visit, const ModelShape& shape, Dtype dtype);

  /// An op of the visit has been written.
  void note(const program::Op& op);
  /// Those that can begin now, and have not, `most` at most; they count as written.
  std::vector<program::Op> take_ready(size_t most = SIZE_MAX);
  /// What is left of an op for weights when its turn comes: it itself where nothing was taken.
  std::vector<program::Op> rest(const program::Op& op) const;

 private:
  struct Product {
    const program::Op* op;
    Segment segment;
    bool taken = false;
  };
  program::Op part(const program::Op& op, SegmentRange range) const;

  const ModelShape& shape_;
  int64_t block_;
  Dtype dtype_;
  ValueSet coming_;  // what inputs of this visit have still to leave
  std::vector<Product> products_;
};

/// Whether what an op leaves in a slot is a sum worth hiding: the gradient of a matrix's input.
bool is_gradient_sum(int slot);

}  // namespace strait::strategy
