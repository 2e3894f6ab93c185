#include "strait/strategy/compose/chain.h"

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/draft/block_kernels.h"

namespace strait::strategy {

using draft::add_operand;
using program::Access;
using program::Category;
using program::Node;
using program::Op;
using program::Operand;
using program::OpKind;

int find_array(const program::Program& program, const std::string& name) {
  for (size_t i = 0; i < program.arrays.size(); ++i)
    if (program.arrays[i].name == name) return static_cast<int>(i);
  throw InternalError("program has no value named " + name);
}

Chain::Chain(program::Program& program, const ModelShape& shape, const Movement& movement,
             const StepOptions& options, const Placement& placement)
    : program_(program),
      shape_(shape),
      movement_(movement),
      options_(options),
      placement_(placement),
      live_(shape.units.size(), false),
      ready_(shape.units.size(), false),
      source_(shape.units.size(), GatherSource::kShards),
      copied_(shape.units.size(), options.weights_unchanged) {
  for (size_t b = 0; b < shape.blocks.size(); ++b)
    sizes_.push_back(block_sizes(shape, static_cast<int64_t>(b), options.micro_batch_size,
                                 options.tokens, options.dtype));
}

void Chain::declare_arrays(bool train) {
  if (batch_ >= 0) return;
  const auto declare = [&](const char* name, int64_t count, Dtype dtype, int64_t elements,
                           Category category) {
    program::ValueArray array;
    array.name = name;
    array.count = count;
    array.dtype = dtype;
    array.partition = {elements, elements};
    array.category = category;
    program_.arrays.push_back(std::move(array));
    return static_cast<int>(program_.arrays.size()) - 1;
  };
  const int64_t rows = options_.micro_batch_size * options_.tokens;
  // inputs, targets and, with documents, document starts.
  const int64_t words = rows * (options_.documents ? 3 : 2);
  const int64_t blocks = static_cast<int64_t>(shape_.blocks.size());
  const int64_t elements = sizes_.front().output_bytes / dtype_bytes(options_.dtype);
  batch_ = declare("batch", 1, Dtype::kInt32, words, Category::kActivations);
  activation_ = declare("x", blocks - 1, options_.dtype, elements, Category::kActivations);
  sequences_ =
      declare("sequences", 1, Dtype::kInt64, options_.micro_batch_size, Category::kActivations);
  program_.arrays[sequences_].tier = program::Tier::kHost;
  agreed_ = find_array(program_, "agreed");
  step_ = find_array(program_, "step");
  if (!train) return;
  activation_gradient_ = declare("d", blocks - 1, options_.dtype, elements, Category::kActivations);
  int64_t saved = 0;
  for (const BlockSizes& size : sizes_) saved = std::max(saved, size.saved_bytes);
  saved_ = declare("s", blocks - 1, Dtype::kByte, saved, Category::kActivations);
}

std::vector<Chain::Item> Chain::items(bool train) const {
  const int64_t blocks = static_cast<int64_t>(shape_.blocks.size());
  std::vector<Item> result;
  for (int64_t b = 0; b < blocks; ++b) result.push_back({b, false, true});
  for (int64_t b = blocks - 2; train && b >= 0; --b) result.push_back({b, true, !is_embedding(b)});
  return result;
}

std::vector<Node> Chain::train(const MicroStep& step) {
  declare_arrays(true);
  emit_items(items(true), step, true);
  while (step.phase == ReducePhase::kLast && reduces()) advance_reductions();
  release(batch_, 0);
  release(sequences_, 0);
  return std::move(nodes_);
}

std::vector<Node> Chain::evaluate() {
  declare_arrays(false);
  emit_items(items(false), {}, false);
  release(batch_, 0);
  release(sequences_, 0);
  return std::move(nodes_);
}

void Chain::emit_items(const std::vector<Item>& items, const MicroStep& step, bool train) {
  nodes_.clear();
  reduced_.clear();
  made_.clear();
  trains_ = train;
  contributions_.assign(shape_.units.size(), 0);
  for (const BlockShape& block : shape_.blocks) ++contributions_[block.unit];
  load(step);
  const size_t head = shape_.blocks.size() - 1;
  const size_t end = step.phase == ReducePhase::kLast ? items.size() : 2 * items.size();
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    const bool contributes = item.backward || (train && static_cast<size_t>(item.block) == head);
    gather_ahead(items, i, end);
    if (item.needs_weights) make_ready(item.block);
    if (contributes) end_reduction(unit_of(item.block));
    if (item.backward)
      backward(item.block, step);
    else if (static_cast<size_t>(item.block) == head)
      loss(item.block, train, step);
    else
      forward(item.block, train);
    if (item.needs_weights) {
      movement_.release(unit_of(item.block), nodes_);
      live_[unit_of(item.block)] = ready_[unit_of(item.block)] = false;
    }
    if (contributes)
      after_contribution(unit_of(item.block), item.block, step);
    else if (!is_embedding(item.block))
      advance_reductions();
  }
  next_gather_ -= items.size();
}

GatherSource Chain::source_of(int64_t unit) {
  if (placement_.secondary == 1) return GatherSource::kShards;
  if (copied_[unit]) return GatherSource::kCopy;
  copied_[unit] = true;
  return GatherSource::kShardsAndCopy;
}

void Chain::make_ready(int64_t block) {
  const int64_t unit = unit_of(block);
  if (ready_[unit]) return;
  movement_.ready(unit, source_[unit], nodes_);
  ready_[unit] = true;
}

void Chain::gather_ahead(const std::vector<Item>& items, size_t current, size_t end) {
  size_t last = current;
  for (int64_t left = placement_.prefetch_units; left > 0 && last + 1 < end;)
    left -= is_embedding(items[++last % items.size()].block) ? 0 : 1;
  for (; next_gather_ <= last; ++next_gather_) {
    const Item& item = items[next_gather_ % items.size()];
    if (!item.needs_weights) continue;
    const int64_t unit = unit_of(item.block);
    if (live_[unit]) return;  // its earlier copy is still in use; gathered again once that is freed
    std::vector<Operand> waits;
    if (movement_.copies() && current > 0 && items[current - 1].needs_weights)
      waits.push_back(movement_.weights(unit_of(items[current - 1].block)));
    source_[unit] = source_of(unit);
    movement_.gather(unit, source_[unit], std::move(waits), nodes_);
    live_[unit] = true;
  }
}

Op Chain::compute(const program::Kernel& kernel, int64_t block) const {
  const int64_t segments = static_cast<int64_t>(shape_.blocks[block].segments.size());
  Op op = draft::block_op(kernel, block, {0, segments});
  op.attributes[draft::kBatch] = options_.micro_batch_size;
  op.attributes[draft::kLength] = options_.tokens;
  op.attributes[draft::kTraining] = int64_t{trains_ ? 1 : 0};
  read(op, batch_, 0, draft::kTokens);
  return op;
}

void Chain::set_cost(Op& op, double flops, int64_t workspace_bytes) const {
  op.attributes[draft::kFlops] = flops;
  op.attributes[draft::kWorkspace] = workspace_bytes;
}

void Chain::read_weights(Op& op, int64_t block) const {
  op.reads.push_back(
      program::as(movement_.weights(unit_of(block)), Access::kRead, draft::kWeights));
}

/// The gradient of the block's unit: made, added to that of earlier micro-steps, or, where another block
/// of the unit has made its part in this one, updated.
void Chain::make_gradient(Op& op, int64_t block, const MicroStep& step) const {
  const int64_t unit = unit_of(block);
  const bool adds = step.accumulate && !movement_.gradient_is_fresh();
  const Access access = adds                   ? Access::kAdd
                        : made_.contains(unit) ? Access::kUpdate
                                               : Access::kWrite;
  op.writes.push_back(program::as(movement_.gradient(unit), access, draft::kGradient));
}

void Chain::load(const MicroStep& step) {
  Op op;
  op.kind = OpKind::kKernel;
  op.kernel = &draft::kLoad;
  op.attributes = {step.index, options_.micro_batch_size, options_.tokens};
  read(op, step_, 0, draft::kStepValues);
  write(op, batch_, 0, draft::kTokens);
  write(op, sequences_, 0, draft::kSequences);
  add_operand(op, agreed_, {}, Access::kAdd, draft::kAgreed);
  nodes_.push_back(std::move(op));
}

bool Chain::keeps_saved(int64_t block) const {
  const bool transformer = shape_.blocks[block].kind == BlockKind::kTransformer;
  return sizes_[block].saved_bytes > 0 && !(transformer && options_.recompute.applies(block - 1));
}

void Chain::forward(int64_t block, bool train) {
  Op op = compute(draft::kForward, block);
  read(op, sequences_, 0, draft::kSequences);
  read_weights(op, block);
  if (block > 0) read(op, activation_, block - 1, draft::kInput);
  write(op, activation_, block, draft::kOutput);
  if (train && keeps_saved(block)) write(op, saved_, block, draft::kSaved);
  set_cost(op, sizes_[block].forward_flops, sizes_[block].forward_workspace_bytes);
  nodes_.push_back(std::move(op));
  if (!train && block > 0) release(activation_, block - 1);
}

void Chain::recompute(int64_t block) {
  Op op = compute(draft::kForward, block);
  read(op, sequences_, 0, draft::kSequences);
  read_weights(op, block);
  read(op, activation_, block - 1, draft::kInput);
  write(op, saved_, block, draft::kSaved);
  // The last segment saves nothing.
  --std::get<program::IntegerRange>(op.attributes[draft::kSegments]).end;
  set_cost(op, sizes_[block].forward_flops, sizes_[block].forward_workspace_bytes);
  nodes_.push_back(std::move(op));
}

void Chain::loss(int64_t block, bool train, const MicroStep& step) {
  const BlockSizes& sizes = sizes_[block];
  Op op = compute(train ? draft::kForwardBackward : draft::kForwardLoss, block);
  if (train) read(op, step_, 0, draft::kStepValues);
  read_weights(op, block);
  read(op, activation_, block - 1, draft::kInput);
  add_operand(op, agreed_, {}, Access::kAdd, draft::kAgreed);
  set_cost(op, sizes.forward_flops + (train ? sizes.backward_flops : 0),
           train ? sizes.backward_workspace_bytes : sizes.forward_workspace_bytes);
  if (train) {
    write(op, activation_gradient_, block - 1, draft::kInputGradient);
    make_gradient(op, block, step);
  }
  nodes_.push_back(std::move(op));
  release(activation_, block - 1);
}

void Chain::backward(int64_t block, const MicroStep& step) {
  const bool saved = sizes_[block].saved_bytes > 0;
  if (saved && !keeps_saved(block)) recompute(block);
  Op op = compute(draft::kBackward, block);
  read(op, sequences_, 0, draft::kSequences);
  if (!is_embedding(block)) read_weights(op, block);
  if (block > 0) read(op, activation_, block - 1, draft::kInput);
  if (saved) read(op, saved_, block, draft::kSaved);
  read(op, activation_gradient_, block, draft::kOutputGradient);
  if (block > 0) write(op, activation_gradient_, block - 1, draft::kInputGradient);
  make_gradient(op, block, step);
  if (reduced_.size() >= 2) op.waits = movement_.reduction_buffers(reduced_[reduced_.size() - 2]);
  set_cost(op, sizes_[block].backward_flops, sizes_[block].backward_workspace_bytes);
  nodes_.push_back(std::move(op));
  if (saved) release(saved_, block);
  if (block > 0) release(activation_, block - 1);
  release(activation_gradient_, block);
}

void Chain::end_reduction(int64_t unit) {
  const auto is_of_unit = [&](const Reduction& reduction) { return reduction.unit == unit; };
  while (std::any_of(under_way_.begin(), under_way_.end(), is_of_unit)) advance_reductions();
}

void Chain::after_contribution(int64_t unit, int64_t block, const MicroStep& step) {
  made_.insert(unit);
  if (--contributions_[unit] > 0) return;
  // The new one first: its transfer runs while what arrived for older ones is decoded.
  under_way_.insert(under_way_.begin(),
                    {unit, movement_.reduce(unit, step.accumulate, step.phase)});
  advance_reductions(is_embedding(block) ? 1 : SIZE_MAX);
  reduced_.push_back(unit);
}

void Chain::advance_reductions(size_t newest) {
  for (size_t i = 0; i < std::min(newest, under_way_.size()); ++i) {
    std::vector<Node>& stage = under_way_[i].stages.front();
    nodes_.insert(nodes_.end(), std::make_move_iterator(stage.begin()),
                  std::make_move_iterator(stage.end()));
    under_way_[i].stages.erase(under_way_[i].stages.begin());
  }
  std::erase_if(under_way_, [](const Reduction& reduction) { return reduction.stages.empty(); });
}

void Chain::release(int array, int64_t index) {
  Op op;
  op.kind = OpKind::kFree;
  op.writes = {{array, {index}, Access::kWrite}};
  nodes_.push_back(std::move(op));
}

}  // namespace strait::strategy
