#include "strait/strategy/compose/chain.h"

#include <algorithm>

#include "strait/base/errors.h"

namespace strait::strategy {

using program::Category;
using program::Lifetime;
using program::Node;
using program::Op;
using program::Operand;
using program::OpKind;
using program::Role;

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
  // inputs, targets and, with documents, document starts; then the sequence numbers as two words each.
  const int64_t words = rows * (options_.documents ? 3 : 2) + 2 * options_.micro_batch_size;
  const int64_t blocks = static_cast<int64_t>(shape_.blocks.size());
  const int64_t elements = sizes_.front().output_bytes / dtype_bytes(options_.dtype);
  batch_ = declare("batch", 1, Dtype::kInt32, words, Category::kActivations);
  activation_ = declare("x", blocks - 1, options_.dtype, elements, Category::kActivations);
  agreed_ = find_array(program_, "agreed");
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
  return std::move(nodes_);
}

std::vector<Node> Chain::evaluate() {
  declare_arrays(false);
  emit_items(items(false), {}, false);
  release(batch_, 0);
  return std::move(nodes_);
}

void Chain::emit_items(const std::vector<Item>& items, const MicroStep& step, bool train) {
  nodes_.clear();
  reduced_.clear();
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
      forward(item.block, train, step);
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
  movement_.ready(unit, block, source_[unit], nodes_);
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
    movement_.gather(unit, item.block, source_[unit], std::move(waits), nodes_);
    live_[unit] = true;
  }
}

Op Chain::compute(OpKind kind, int64_t block, const MicroStep& step) const {
  Op op;
  op.kind = kind;
  op.block = {block, -1, 0};
  op.micro_batch = step.index;
  op.segment_end = static_cast<int>(shape_.blocks[block].segments.size());
  op.reads = {at(batch_, 0, Role::kTokens)};
  return op;
}

void Chain::load(const MicroStep& step) {
  Op op;
  op.kind = OpKind::kLoad;
  op.micro_batch = step.index;
  op.writes = {at(batch_, 0, Role::kTokens)};
  nodes_.push_back(std::move(op));
}

bool Chain::keeps_saved(int64_t block) const {
  const bool transformer = shape_.blocks[block].kind == BlockKind::kTransformer;
  return sizes_[block].saved_bytes > 0 && !(transformer && options_.recompute.applies(block - 1));
}

void Chain::forward(int64_t block, bool train, const MicroStep& step) {
  Op op = compute(OpKind::kForward, block, step);
  op.reads.push_back(movement_.weights(unit_of(block)));
  if (block > 0) op.reads.push_back(at(activation_, block - 1, Role::kInput));
  op.writes = {at(activation_, block, Role::kOutput)};
  op.save = train && keeps_saved(block);
  if (op.save) op.writes.push_back(at(saved_, block, Role::kSaved));
  op.flops = sizes_[block].forward_flops;
  op.workspace_bytes = sizes_[block].forward_workspace_bytes;
  nodes_.push_back(std::move(op));
  if (!train && block > 0) release(activation_, block - 1);
}

void Chain::recompute(int64_t block, const MicroStep& step) {
  Op op = compute(OpKind::kForward, block, step);
  op.reads.push_back(movement_.weights(unit_of(block)));
  op.reads.push_back(at(activation_, block - 1, Role::kInput));
  op.writes = {at(saved_, block, Role::kSaved)};
  op.save = true;
  op.segment_end -= 1;  // the last segment saves nothing
  op.flops = sizes_[block].forward_flops;
  op.workspace_bytes = sizes_[block].forward_workspace_bytes;
  nodes_.push_back(std::move(op));
}

void Chain::loss(int64_t block, bool train, const MicroStep& step) {
  Op op = compute(train ? OpKind::kForwardBackward : OpKind::kForwardLoss, block, step);
  op.reads.push_back(movement_.weights(unit_of(block)));
  op.reads.push_back(at(activation_, block - 1, Role::kInput));
  op.writes = {at(agreed_, 0, Role::kScalars)};
  op.flops = sizes_[block].forward_flops + (train ? sizes_[block].backward_flops : 0);
  op.workspace_bytes =
      train ? sizes_[block].backward_workspace_bytes : sizes_[block].forward_workspace_bytes;
  if (train) {
    op.writes.push_back(at(activation_gradient_, block - 1, Role::kInputGradient));
    op.writes.push_back(movement_.gradient(unit_of(block)));
    op.accumulate = step.accumulate && !movement_.gradient_is_fresh();
  }
  nodes_.push_back(std::move(op));
  release(activation_, block - 1);
}

void Chain::backward(int64_t block, const MicroStep& step) {
  const bool saved = sizes_[block].saved_bytes > 0;
  if (saved && !keeps_saved(block)) recompute(block, step);
  Op op = compute(OpKind::kBackward, block, step);
  if (!is_embedding(block)) op.reads.push_back(movement_.weights(unit_of(block)));
  if (block > 0) op.reads.push_back(at(activation_, block - 1, Role::kInput));
  if (saved) op.reads.push_back(at(saved_, block, Role::kSaved));
  op.reads.push_back(at(activation_gradient_, block, Role::kOutputGradient));
  if (block > 0) op.writes.push_back(at(activation_gradient_, block - 1, Role::kInputGradient));
  op.writes.push_back(movement_.gradient(unit_of(block)));
  op.accumulate = step.accumulate && !movement_.gradient_is_fresh();
  if (reduced_.size() >= 2) op.waits = movement_.reduction_buffers(reduced_[reduced_.size() - 2]);
  op.flops = sizes_[block].backward_flops;
  op.workspace_bytes = sizes_[block].backward_workspace_bytes;
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
  if (--contributions_[unit] > 0) return;
  // The new one first: its transfer runs while what arrived for older ones is decoded.
  under_way_.insert(under_way_.begin(),
                    {unit, movement_.reduce(unit, block, step.accumulate, step.phase)});
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
  op.writes = {at(array, index, Role::kDestination)};
  nodes_.push_back(std::move(op));
}

}  // namespace strait::strategy
