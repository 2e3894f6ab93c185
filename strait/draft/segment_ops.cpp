#include "strait/draft/segment_ops.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "strait/draft/shard_kernels.h"

namespace strait::draft {
namespace {

using enum BlockValue;
using program::Kernel;
using program::Op;

bool holds(const ValueSet& set, BlockValue value) { return set.test(value_index(value)); }

/// The gradient of the residual stream keeps its place from the middle of a block to its input.
int slot_of(BlockValue value, Phase phase, const Places& places) {
  if (value == kInput) return draft::kInput;
  if (value == kOutput) return draft::kOutput;
  if (value == kOutputGradient) return draft::kOutputGradient;
  if (value == kInputGradient || value == kMiddleGradient) return draft::kInputGradient;
  if (value == kUp && places.keeps && places.up_apart) return kKeptUp;
  if (holds(kept_values(), value) && places.keeps) return kSaved;
  const bool apart = places.unbundled || (places.splits_rows && !holds(product_values(), value));
  if (holds(bundle_values(), value) && phase != Phase::kForward && !apart)
    return holds(deferred_values(), value) ? kDeferred : kBundle;
  return block_slot(value);
}

/// A bundle holds what other ranges of the phase have put there before: the second segment of a
/// phase is the first that puts something there.
bool is_begun(int slot, SegmentRange range, Phase phase, bool splits_rows) {
  if (phase == Phase::kForward) return slot == kSaved && range.begin > 1;
  // From mlp_branch on a backward fills its bundle, from up_add on what may wait; where rows are
  // split, what mlp_branch makes is a value of its own.
  const Segment first = slot == kDeferred || splits_rows ? Segment::kUpAdd : Segment::kMlpBranch;
  return (slot == kSaved || slot == kBundle || slot == kDeferred) &&
         range.end <= static_cast<int>(first);
}

struct Costs {
  double flops = 0, attention_flops = 0;
  int64_t workspace_bytes = 0;
  LibraryWork library = {};
};

Costs segment_costs(const Op& op, const ModelShape& shape, Dtype dtype) {
  const auto batch = program::attribute<int64_t>(op, kBatch);
  const auto tokens = program::attribute<int64_t>(op, kLength);
  const SegmentSizes sizes = segment_sizes(shape, range_of(op), batch, tokens, dtype);
  ValueSet given;
  for (const auto* operands : {&op.reads, &op.writes})
    for (const program::Operand& operand : *operands) given |= values_in(operand.slot);
  const Phase phase = phase_of(op);
  BlockExtent extent = block_extent(shape, batch, tokens, dtype);
  double flops = phase == Phase::kForward         ? sizes.forward_flops
                 : phase == Phase::kBackwardInput ? sizes.backward_input_flops
                                                  : sizes.backward_weight_flops;
  const double attentions = phase == Phase::kForward ? 1 : phase == Phase::kBackwardInput ? 2 : 0;
  if (works_on_rows(op)) {
    const int64_t rows = rows_of(op).end - rows_of(op).begin;
    flops *= static_cast<double>(rows) / static_cast<double>(extent.rows);
    extent.rows = rows;
  }
  return {flops, attentions * sizes.attention_flops,
          workspace_offsets(extent, range_of(op), phase, given).elements * dtype_bytes(dtype)};
}

Costs fused_costs(const Op& op, const ModelShape& shape, int64_t block, Dtype dtype) {
  const BlockSizes sizes = block_sizes(shape, block, program::attribute<int64_t>(op, kBatch),
                                       program::attribute<int64_t>(op, kLength), dtype);
  if (op.kernel == &kBackward)
    return {sizes.backward_flops, 2 * sizes.attention_flops, sizes.backward_workspace_bytes,
            sizes.backward_library};
  if (op.kernel == &kForwardBackward)
    return {sizes.forward_flops + sizes.backward_flops, 3 * sizes.attention_flops,
            sizes.backward_workspace_bytes, sizes.backward_library};
  return {sizes.forward_flops, sizes.attention_flops, sizes.forward_workspace_bytes,
          sizes.forward_library};
}

}  // namespace

std::vector<OperandUse> segment_operands(SegmentRange range, Phase phase, const Places& places) {
  using program::Access;
  const RangeUses uses = range_uses(range, phase, places.keeps, places.splits_rows);
  std::bitset<kNumBlockOperands> read, written;
  for (int number = 0; number < kNumBlockValues; ++number) {
    const auto value = static_cast<BlockValue>(number);
    const auto slot = static_cast<size_t>(slot_of(value, phase, places));
    if (holds(uses.reads, value)) read.set(slot);
    if (holds(uses.writes, value)) written.set(slot);
  }
  read.set(kTokens);
  read.set(kSequences, phase != Phase::kBackwardWeight);
  std::vector<OperandUse> operands;
  for (int slot = 0; slot < kNumBlockOperands; ++slot) {
    const auto at = static_cast<size_t>(slot);
    const bool before = read[at] || is_begun(slot, range, phase, places.splits_rows);
    if (written[at]) operands.push_back({slot, before ? Access::kUpdate : Access::kWrite});
    if (read[at] && !written[at]) operands.push_back({slot, Access::kRead});
  }
  return operands;
}

ValueSet values_in(int slot) {
  if (slot == draft::kInput) return value_set({BlockValue::kInput});
  if (slot == draft::kOutput) return value_set({BlockValue::kOutput});
  if (slot == draft::kOutputGradient) return value_set({BlockValue::kOutputGradient});
  if (slot == draft::kInputGradient)
    return value_set({BlockValue::kInputGradient, kMiddleGradient});
  if (slot == kSaved) return kept_values();
  if (slot == kKeptUp) return value_set({kUp});
  if (slot == kBundle) return bundle_values() & ~deferred_values();
  if (slot == kDeferred) return deferred_values();
  if (slot < kBlockValues || slot >= kEndValues) return {};
  return value_set({static_cast<BlockValue>(slot - kBlockValues)});
}

const ValueSet& product_values() {
  static const ValueSet products =
      value_set({kQkvGradient, kKeptAttention, kUpGradient, kActivated});
  return products;
}

bool is_deferred(int slot) {
  return slot == kDeferred || slot == block_slot(kQueryKeyNormGradient);
}

namespace {

/// Over whose ranks a slot for a value of a U-Net is a sum.
GridAxis unet_axis(int slot) {
  return slot >= kUnetGradients ? unet_gradient_axis(static_cast<UnetValue>(slot - kUnetGradients))
                                : unet_sum_axis(static_cast<UnetValue>(slot - kUnetValues));
}

}  // namespace

bool is_partial_over_x(int slot) {
  if (slot >= kUnetValues) return unet_axis(slot) == GridAxis::kX;
  if (slot >= kEndValues) return strait::partial_over_x(static_cast<EndValue>(slot - kEndValues));
  return slot >= kBlockValues &&
         strait::partial_over_x(static_cast<BlockValue>(slot - kBlockValues));
}

bool is_partial_over_y(int slot) {
  if (slot >= kUnetValues) return unet_axis(slot) == GridAxis::kY;
  if (slot >= kEndValues) return strait::partial_over_y(static_cast<EndValue>(slot - kEndValues));
  return slot >= kBlockValues &&
         strait::partial_over_y(static_cast<BlockValue>(slot - kBlockValues));
}

bool is_exchanged_by_rows(int slot) {
  if (slot >= kUnetValues) return false;
  if (slot >= kEndValues)
    return strait::is_exchanged_by_rows(static_cast<EndValue>(slot - kEndValues));
  return slot >= kBlockValues &&
         strait::is_exchanged_by_rows(static_cast<BlockValue>(slot - kBlockValues));
}

const program::Operand* find_operand(std::span<const Op> ops, int slot) {
  for (const Op& op : ops)
    for (const auto* operands : {&op.reads, &op.writes})
      if (const program::Operand* found = program::operand_in(*operands, slot)) return found;
  return nullptr;
}

namespace {

/// The operand in a slot, of the first op that has one: several joined values may be one.
std::vector<program::Operand> operands_in(std::span<const Op> ops, int slot) {
  std::vector<program::Operand> found;
  for (const Op& op : ops)
    for (const auto* operands : {&op.reads, &op.writes}) {
      if (!found.empty()) return found;
      for (const program::Operand& operand : *operands)
        if (operand.slot == slot) found.push_back(operand);
    }
  return found;
}

}  // namespace

namespace {

/// Whether some of these values are operands of their own.
bool stand_apart(std::span<const Op> ops, const ValueSet& values) {
  const auto is_apart = [&](const program::Operand& operand) {
    return operand.slot >= kBlockValues && (values_in(operand.slot) & values).any();
  };
  return std::ranges::any_of(ops, [&](const Op& op) {
    return std::ranges::any_of(op.reads, is_apart) || std::ranges::any_of(op.writes, is_apart);
  });
}

/// Whether a backward does not make what a product has read: all rows of it come from others.
bool leaves_out_normed(const Op& op) {
  const auto leaves_out = [&](Segment product, BlockValue normed) {
    return range_of(op).holds(product) && find_operand({&op, 1}, block_slot(normed)) == nullptr;
  };
  return phase_of(op) == Phase::kBackwardInput &&
         (leaves_out(Segment::kQkv, kNormedAttention) || leaves_out(Segment::kUp, kNormedMlp));
}

}  // namespace

Places places_in(std::span<const Op> ops) {
  Places places;
  places.up_apart = find_operand(ops, kKeptUp) != nullptr;
  places.keeps = places.up_apart || find_operand(ops, kSaved) != nullptr;
  if (ops.empty() || phase_of(ops.front()) == Phase::kForward) return places;
  places.unbundled = stand_apart(ops, product_values());
  places.splits_rows = places.unbundled ? std::ranges::any_of(ops, leaves_out_normed)
                                        : stand_apart(ops, bundle_values());
  return places;
}

const Kernel& segment_kernel(Phase phase) {
  return phase == Phase::kForward         ? kForwardSegments
         : phase == Phase::kBackwardInput ? kBackwardInput
                                          : kBackwardWeight;
}

const Kernel& rows_kernel(Phase phase) {
  return phase == Phase::kForward ? kForwardRows : kBackwardInputRows;
}

const Kernel& shard_kernel(Phase phase) {
  return phase == Phase::kForward ? kForwardShard : kBackwardInputShard;
}

bool works_on_shard(const Op& op) {
  return op.kernel == &kForwardShard || op.kernel == &kBackwardInputShard;
}

bool works_on_rows(const Op& op) {
  return op.kernel == &kForwardRows || op.kernel == &kBackwardInputRows || works_on_shard(op);
}

program::IntegerRange rows_of(const Op& op) {
  return program::attribute<program::IntegerRange>(op, kRows);
}

bool works_on_segments(const Op& op) {
  return op.kernel == &kForwardSegments || op.kernel == &kBackwardInput ||
         op.kernel == &kBackwardWeight || works_on_rows(op);
}

Phase phase_of(const Op& op) {
  const auto is = [&](const Kernel& whole, const Kernel& rows, const Kernel& shard) {
    return op.kernel == &whole || op.kernel == &rows || op.kernel == &shard;
  };
  return is(kForwardSegments, kForwardRows, kForwardShard)             ? Phase::kForward
         : is(kBackwardInput, kBackwardInputRows, kBackwardInputShard) ? Phase::kBackwardInput
                                                                       : Phase::kBackwardWeight;
}

SegmentRange range_of(const Op& op) {
  const auto& range = program::attribute<program::IntegerRange>(op, kSegments);
  return {static_cast<int>(range.begin), static_cast<int>(range.end)};
}

void set_range(Op& op, SegmentRange range, std::span<const Op> from) {
  std::get<program::IntegerRange>(op.attributes[kSegments]) = {range.begin, range.end};
  Op made;
  for (const auto& [slot, access] : segment_operands(range, phase_of(op), places_in(from)))
    for (const program::Operand& operand : operands_in(from, slot))
      add_operand(made, operand.array, operand.index, access, slot);
  op.reads = std::move(made.reads);
  op.writes = std::move(made.writes);
}

BlockExtent extent_of(const ModelShape& shape, const StepOptions& options) {
  BlockExtent extent = block_extent(shape, options.micro_batch_size, options.tokens, options.dtype);
  extent.attention_rows = options.micro_batch_size * options.attention_tokens;
  extent.attends_apart = options.attends_apart();
  return extent;
}

void price(Op& op, const ModelShape& shape, int64_t block, Dtype dtype) {
  const Costs costs = works_on_segments(op) ? segment_costs(op, shape, dtype)
                                            : fused_costs(op, shape, block, dtype);
  set_flops(op, costs.flops, costs.attention_flops);
  op.attributes[kWorkspace] = costs.workspace_bytes;
  set_library(op, costs.library);
}

}  // namespace strait::draft
