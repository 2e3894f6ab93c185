#include "strait/strategy/order/unet_ops.h"

#include <fmt/format.h>

#include "strait/draft/block_kernels.h"

namespace strait::strategy {

using program::Access;
using program::Op;
using program::Operand;

UnetOps::UnetOps(program::Program& program, const ModelShape& shape,
                 const draft::StepOptions& options, const ChainArrays& arrays)
    : shape_(shape), unet_(*shape.modules->unet), options_(options), arrays_(arrays) {
  const bool trains = options.purpose == draft::Purpose::kTrain;
  const Dtype wide = options.dtype == Dtype::kBfloat16 ? Dtype::kFloat32 : options.dtype;
  const auto declare = [&](const char* name, int64_t block, Dtype dtype, int64_t elements) {
    return Operand{draft::declare(program, {fmt::format("{}.{}", name, block), 1, dtype,
                                            options.micro_batch_size * elements})};
  };
  values_.resize(unet_.blocks.size());
  for (int64_t block = 0; block < std::ssize(values_); ++block) {
    if (!shares(block)) continue;
    Values& values = values_[static_cast<size_t>(block)];
    values.branch = declare("branch", block, wide, unet_.branch(block).elements());
    if (!trains) continue;
    values.branch_gradient =
        declare("branch_gradient", block, options.dtype, unet_.branch(block).elements());
    values.normed_gradient =
        declare("normed_gradient", block, options.dtype, unet_.normed_elements(block));
  }
}

std::vector<Op> UnetOps::forward(int64_t block, const BlockEnds& ends) const {
  return {make_op(UnetPhase::kPart, block, ends), make_op(UnetPhase::kJoin, block, ends)};
}

std::vector<Op> UnetOps::backward(int64_t block, const BlockEnds& ends) const {
  return {make_op(UnetPhase::kJoinGradient, block, ends),
          make_op(UnetPhase::kPartGradient, block, ends),
          make_op(UnetPhase::kNormGradient, block, ends)};
}

std::vector<Operand> UnetOps::frees(int64_t block) const {
  const Values& values = values_[static_cast<size_t>(block)];
  std::vector<Operand> freed = {values.branch};
  if (options_.purpose == draft::Purpose::kTrain) {
    freed.push_back(values.branch_gradient);
    freed.push_back(values.normed_gradient);
  }
  return freed;
}

Op UnetOps::make_op(UnetPhase phase, int64_t block, const BlockEnds& ends) const {
  const program::Kernel& kernel = draft::unet_kernel(phase);
  Op op = draft::block_op(kernel, block, {0, 1});
  op.attributes[draft::kBatch] = options_.micro_batch_size;
  op.attributes[draft::kLength] = options_.tokens;
  op.attributes[draft::kTraining] = int64_t{options_.purpose == draft::Purpose::kTrain ? 1 : 0};
  const ModuleBlock& module = shape_.modules->blocks[static_cast<size_t>(block)];
  const auto batch = static_cast<double>(options_.micro_batch_size);
  const double shared = batch * module.shared_flops / static_cast<double>(shape_.x);
  const double whole = batch * (module.forward_flops - module.shared_flops);
  op.attributes[draft::kFlops] = phase == UnetPhase::kPart           ? shared
                                 : phase == UnetPhase::kJoin         ? whole
                                 : phase == UnetPhase::kJoinGradient ? 3 * whole
                                 : phase == UnetPhase::kPartGradient ? 3 * shared
                                                                     : 0.0;
  op.attributes[draft::kWorkspace] = int64_t{0};
  const Values& values = values_[static_cast<size_t>(block)];
  const auto add = [&](const Operand& value, draft::BlockOperand slot) {
    const program::KernelOperand& entry = kernel.operands[slot];
    if (entry.count == program::Count::kNone) return;
    const Access access = entry.access == program::kReads    ? Access::kRead
                          : entry.access == program::kWrites ? Access::kWrite
                                                             : Access::kUpdate;
    draft::add_operand(op, value.array, value.index, access, slot);
  };
  add({arrays_.batch, {}}, draft::kTokens);
  add(ends.input, draft::kInput);
  add(ends.output, draft::kOutput);
  add(ends.output_gradient, draft::kOutputGradient);
  add(ends.input_gradient, draft::kInputGradient);
  add(values.branch, draft::kBranch);
  add(values.branch_gradient, draft::kBranchGradient);
  add(values.normed_gradient, draft::kNormedGradient);
  return op;
}

}  // namespace strait::strategy
