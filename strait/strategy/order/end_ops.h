// The operations of an embedding and a head that ranks share, step by step (shape/ends.h).
#pragma once

#include <array>
#include <vector>

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/ends.h"
#include "strait/strategy/order/block_segments.h"

namespace strait::strategy {

/// Declares what passes between the steps, and writes them. Immutable then.
class EndOps {
 public:
  EndOps(draft::Draft& draft, const ModelShape& shape, const draft::StepOptions& options,
         const ChainArrays& arrays);

  std::vector<program::Op> embedding() const;
  /// Where rows are split: its backward, behind the gather of the gradient of what it makes.
  std::vector<program::Op> embedding_gradient(program::Op backward) const;
  /// Training or the loss alone, as the options say.
  std::vector<program::Op> head() const;
  /// What ends with a visit of these ops.
  std::vector<program::Operand> frees(const std::vector<program::Op>& ops) const;

 private:
  program::Op make_op(EndStep step, int64_t block) const;
  /// The op of a step, with the transfer of rows before or behind it.
  void add_step(EndStep step, int64_t block, std::vector<program::Op>& ops) const;
  program::Op transfer(program::OpKind kind, const program::Operand& from,
                       const program::Operand& to) const;
  /// The value of all rows, or where the step works on a rank's, of these.
  int array_of(EndValue value, EndStep step) const;
  void add_values(program::Op& op, EndStep step) const;
  void add_ends(program::Op& op, EndStep step) const;

  const ModelShape& shape_;
  const draft::StepOptions options_;
  const ChainArrays arrays_;
  std::array<int, kNumEndValues> values_{}, own_{};  // own_: with a rank's rows
  int embedding_gradient_ = -1;
  int agreed_ = -1, step_ = -1;
};

}  // namespace strait::strategy
