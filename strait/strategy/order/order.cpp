#include "strait/strategy/order/order.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "strait/draft/segment_ops.h"
#include "strait/strategy/order/block_segments.h"
#include "strait/strategy/order/end_ops.h"
#include "strait/strategy/order/unet_ops.h"

namespace strait::strategy {
namespace {

using draft::MicroStep;
using draft::Purpose;
using draft::StepOptions;
using draft::Visit;
using draft::Work;
using program::Access;
using program::Op;
using program::Operand;

int64_t micro_batches_of(const StepOptions& options) {
  return options.purpose == Purpose::kTrain ? options.accumulation : 1;
}

/// Writes the visits of the blocks of a chain.
class Chain {
 public:
  Chain(draft::Draft& draft, const ModelShape& shape, const StepOptions& options)
      : shape_(shape),
        options_(options),
        splits_(draft.splits_backward),
        head_(static_cast<int64_t>(shape.blocks.size()) - 1) {
    for (int64_t b = 0; b <= head_; ++b)
      sizes_.push_back(
          block_sizes(shape, b, options.micro_batch_size, options.tokens, options.dtype));
    // Where the residual stream moves it has room for the rows on either side.
    if (options.attends_apart())
      for (BlockSizes& sizes : sizes_)
        sizes.output_bytes = sizes.output_bytes / options.tokens *
                             std::max(options.tokens, options.attention_tokens);
    program::Program& program = draft.program;
    declare_values(program);
    agreed_ = draft::find_array(program, "agreed");
    step_ = draft::find_array(program, "step");
    if (std::ranges::any_of(shape.blocks, is_transformer))
      segments_.emplace(draft, shape, options, arrays_, splits_);
    if (is_shared(shape) && !shape.modules) ends_.emplace(draft, shape, options, arrays_);
    if (is_shared(shape) && shape.modules) unet_.emplace(program, shape, options, arrays_);
  }

  MicroStep micro_step(int64_t number, const program::Index& later) const {
    MicroStep step;
    step.last = number == micro_batches_of(options_) - 1;
    step.repeats = !step.last;
    step.begin = {load(draft::micro_batch_index(number, later))};
    for (int64_t b = 0; b < head_; ++b) step.visits.push_back(forward(b));
    step.visits.push_back(loss());
    for (int64_t b = head_ - 1; trains() && b >= 0; --b) add_backward(b, step.visits);
    for (Visit& visit : step.visits) visit.last = step.last && visit.last;
    step.frees = {{arrays_.batch, {}}, {arrays_.sequences, {}}};
    return step;
  }

 private:
  bool trains() const { return options_.purpose == Purpose::kTrain; }
  const BlockShape& block_shape(int64_t block) const {
    return shape_.blocks[static_cast<size_t>(block)];
  }
  bool is_embedding(int64_t block) const {
    return block_shape(block).kind == BlockKind::kEmbedding;
  }
  static bool is_transformer(const BlockShape& block) {
    return block.kind == BlockKind::kTransformer;
  }
  const BlockSizes& sizes(int64_t block) const { return sizes_[static_cast<size_t>(block)]; }
  /// Kept from forward to backward; otherwise computed again.
  bool keeps_saved(int64_t block) const {
    const bool again = is_transformer(block_shape(block)) && options_.recompute.applies(block - 1);
    return sizes(block).saved_bytes > 0 && !again;
  }

  void declare_values(program::Program& program) {
    const int64_t rows = options_.micro_batch_size * options_.tokens;
    // Inputs, targets and, with documents, document starts.
    const int64_t words =
        rows * (options_.documents ? 3 : 2) + options_.micro_batch_size * options_.row_start_tokens;
    arrays_.batch = draft::declare(program, {"batch", 1, Dtype::kInt32, words});
    declare_boundaries(program, "x", activations_);
    arrays_.activation = activations_.front().array;
    arrays_.sequences =
        draft::declare(program, {"sequences", 1, Dtype::kInt64, options_.micro_batch_size,
                                 program::Lifetime::kTransient, program::Category::kActivations,
                                 program::Tier::kHost});
    if (!trains()) return;
    declare_boundaries(program, "d", gradients_);
    arrays_.gradient = gradients_.front().array;
    const auto by_saved = [](const BlockSizes& a, const BlockSizes& b) {
      return a.saved_bytes < b.saved_bytes;
    };
    const BlockExtent extent = draft::extent_of(shape_, options_);
    int64_t saved = std::ranges::max_element(sizes_, by_saved)->saved_bytes;
    // Only transformers attend.
    if (options_.attention_tokens > options_.tokens || options_.attends_apart())
      saved = saved_offsets(extent).elements * dtype_bytes(options_.dtype);
    arrays_.saved = draft::declare(program, {"s", head_, Dtype::kByte, saved});
    if (extent.keeps_up_apart())
      arrays_.up = draft::declare(
          program, {"up", head_, options_.dtype, value_elements(BlockValue::kUp, extent)});
  }

  /// One value for what leaves each block but the last; those of equal size share an array, which
  /// is one for a chain of transformer blocks.
  void declare_boundaries(program::Program& program, const std::string& name,
                          std::vector<Operand>& boundaries) const {
    std::map<int64_t, std::vector<size_t>> by_bytes;
    std::vector<int64_t> order;
    for (size_t block = 0; block < static_cast<size_t>(head_); ++block) {
      std::vector<size_t>& same = by_bytes[sizes_[block].output_bytes];
      if (same.empty()) order.push_back(sizes_[block].output_bytes);
      same.push_back(block);
    }
    boundaries.resize(static_cast<size_t>(head_));
    for (size_t i = 0; i < order.size(); ++i) {
      const std::vector<size_t>& same = by_bytes[order[i]];
      const int array = draft::declare(program, {i == 0 ? name : name + "." + std::to_string(i),
                                                 static_cast<int64_t>(same.size()), options_.dtype,
                                                 order[i] / dtype_bytes(options_.dtype)});
      for (size_t index = 0; index < same.size(); ++index)
        boundaries[same[index]] = {array, {static_cast<int64_t>(index)}};
    }
  }
  const Operand& activation(int64_t block) const {
    return activations_[static_cast<size_t>(block)];
  }
  const Operand& gradient(int64_t block) const { return gradients_[static_cast<size_t>(block)]; }

  static void read(Op& op, const Operand& value, int slot) {
    op.reads.push_back({value.array, value.index, Access::kRead, slot});
  }
  static void write(Op& op, const Operand& value, int slot) {
    op.writes.push_back({value.array, value.index, Access::kWrite, slot});
  }
  static void read(Op& op, int array, int64_t index, int slot) {
    op.reads.push_back({array, {index}, Access::kRead, slot});
  }
  static void write(Op& op, int array, int64_t index, int slot) {
    op.writes.push_back({array, {index}, Access::kWrite, slot});
  }
  void add_to_agreed(Op& op) const {
    op.writes.push_back({agreed_, {}, Access::kAdd, draft::kAgreed});
  }

  Op compute(const program::Kernel& kernel, int64_t block) const {
    const auto& segments = block_shape(block).segments;
    Op op = draft::block_op(kernel, block, {0, static_cast<int64_t>(segments.size())});
    op.attributes[draft::kBatch] = options_.micro_batch_size;
    op.attributes[draft::kLength] = options_.tokens;
    op.attributes[draft::kTraining] = int64_t{trains() ? 1 : 0};
    read(op, arrays_.batch, 0, draft::kTokens);
    return op;
  }
  void price(Op& op, int64_t block) const { draft::price(op, shape_, block, options_.dtype); }

  Visit visit(int64_t block) const {
    Visit visit;
    visit.block = block;
    visit.brief = is_embedding(block);
    visit.needs = block_shape(block).unit;
    return visit;
  }

  Op load(const program::Index& index) const {
    Op op = draft::kernel_op(draft::kLoad);
    op.attributes = {index, options_.micro_batch_size, options_.tokens, int64_t{1}};
    read(op, step_, 0, draft::kStepValues);
    write(op, arrays_.batch, 0, draft::kTokens);
    write(op, arrays_.sequences, 0, draft::kSequences);
    add_to_agreed(op);
    return op;
  }

  Visit forward(int64_t block) const {
    Visit v = visit(block);
    if (is_transformer(block_shape(block)))
      add_segments(v, segments_->forward(block, trains() && keeps_saved(block)));
    else if (unet_ && unet_->shares(block))
      v.ops = unet_->forward(block, ends_of(block));
    else if (ends_ && shape_.x > 1)
      add_end(v, ends_->embedding());
    else
      v.ops.push_back(forward_op(block));
    if (!trains() && block > 0) v.frees.push_back(activation(block - 1));
    if (!trains() && unet_ && unet_->shares(block)) add_frees(v, unet_->frees(block));
    return v;
  }

  static void add_frees(Visit& v, const std::vector<Operand>& values) {
    v.frees.insert(v.frees.end(), values.begin(), values.end());
  }
  BlockEnds ends_of(int64_t block) const {
    BlockEnds ends;
    if (block > 0) ends.input = activation(block - 1);
    if (block < head_) ends.output = activation(block);
    if (trains() && block > 0) ends.input_gradient = gradient(block - 1);
    if (trains() && block < head_) ends.output_gradient = gradient(block);
    return ends;
  }

  /// Of a block that is one piece.
  Op forward_op(int64_t block) const {
    Op op = compute(draft::kForward, block);
    read(op, arrays_.sequences, 0, draft::kSequences);
    if (block > 0) read(op, activation(block - 1), draft::kInput);
    write(op, activation(block), draft::kOutput);
    if (trains() && keeps_saved(block)) write(op, arrays_.saved, block, draft::kSaved);
    price(op, block);
    return op;
  }

  /// What passes between the ops ends with the visit.
  void add_segments(Visit& v, std::vector<Op> ops) const {
    for (Op& op : ops) {
      for (const Operand& written : op.writes)
        if (draft::is_inside_block(written.slot) && written.access == Access::kWrite &&
            !segments_->is_deferred(written))
          v.frees.push_back(written);
      v.ops.push_back(std::move(op));
    }
  }

  /// The output, where it is made again at all, is of no use.
  void add_recompute(Visit& v, const std::vector<Op>& ops) const {
    for (const Op& op : ops)
      for (const Operand& written : op.writes)
        if (written.slot == draft::kOutput) v.frees.push_back(written);
    add_segments(v, ops);
  }

  void add_end(Visit& v, std::vector<Op> ops) const {
    v.frees = ends_->frees(ops);
    v.ops = std::move(ops);
  }

  Visit loss() const {
    Visit v = visit(head_);
    if (trains()) {
      v.makes = v.needs;
      v.work = Work::kBackwards;
      v.last = true;
    }
    if (ends_) {
      add_end(v, ends_->head());
      v.frees.push_back(activation(head_ - 1));
      return v;
    }
    if (unet_ && unet_->shares(head_)) {
      v.ops = unet_->loss(ends_of(head_));
      v.frees = unet_->frees(head_);
      v.frees.push_back(activation(head_ - 1));
      return v;
    }
    Op op = compute(trains() ? draft::kForwardBackward : draft::kForwardLoss, head_);
    if (trains()) read(op, step_, 0, draft::kStepValues);
    if (block_shape(head_).kind == BlockKind::kCustom)  // whose loss may draw numbers
      read(op, arrays_.sequences, 0, draft::kSequences);
    read(op, activation(head_ - 1), draft::kInput);
    add_to_agreed(op);
    if (trains()) write(op, gradient(head_ - 1), draft::kInputGradient);
    price(op, head_);
    v.ops.push_back(std::move(op));
    v.frees = {activation(head_ - 1)};
    return v;
  }

  /// A visit, or where the backward pass is split two. The embedding's input has no gradient.
  void add_backward(int64_t block, std::vector<Visit>& visits) const {
    visits.push_back(backward(block));
    if (!splits_) return;
    Visit& first = visits.back();
    if (is_embedding(block)) first.work = Work::kWeights;
    if (!is_transformer(block_shape(block))) return;
    first.last = false;
    Visit weight = visit(block);
    weight.work = Work::kWeights;
    weight.last = true;
    weight.makes = std::exchange(weight.needs, std::nullopt);
    weight.ops = segments_->deferred(block);
    for (const Operand& value : segments_->deferred_values(block)) weight.frees.push_back(value);
    visits.push_back(std::move(weight));
  }

  Visit backward(int64_t block) const {
    Visit v = visit(block);
    v.work = Work::kBackwards;
    v.last = true;
    v.makes = v.needs;
    if (is_embedding(block)) v.needs.reset();
    if (is_transformer(block_shape(block))) {
      if (!keeps_saved(block)) add_recompute(v, segments_->recompute(block));
      add_segments(v, segments_->backward(block, !keeps_saved(block)));
    } else if (unet_ && unet_->shares(block)) {
      v.ops = unet_->backward(block, ends_of(block));
      add_frees(v, unet_->frees(block));
    } else if (ends_ && shape_.splits_rows) {
      add_end(v, ends_->embedding_gradient(backward_op(block)));
    } else {
      v.ops.push_back(backward_op(block));
    }
    if (sizes(block).saved_bytes > 0) v.frees.push_back({arrays_.saved, {block}});
    if (is_transformer(block_shape(block)) && arrays_.up >= 0)
      v.frees.push_back({arrays_.up, {block}});
    if (block > 0) v.frees.push_back(activation(block - 1));
    v.frees.push_back(gradient(block));
    return v;
  }

  /// Of a block that is one piece.
  Op backward_op(int64_t block) const {
    Op op = compute(draft::kBackward, block);
    read(op, arrays_.sequences, 0, draft::kSequences);
    if (block > 0) read(op, activation(block - 1), draft::kInput);
    if (sizes(block).saved_bytes > 0) read(op, arrays_.saved, block, draft::kSaved);
    read(op, gradient(block), draft::kOutputGradient);
    if (block > 0) write(op, gradient(block - 1), draft::kInputGradient);
    price(op, block);
    return op;
  }

  const ModelShape& shape_;
  const StepOptions options_;
  const bool splits_;
  const int64_t head_;
  std::vector<BlockSizes> sizes_;
  ChainArrays arrays_;
  std::vector<Operand> activations_, gradients_;  // behind each block but the last
  std::optional<BlockSegments> segments_;         // of transformer blocks
  std::optional<EndOps> ends_;                    // of an embedding and a head that ranks share
  std::optional<UnetOps> unet_;                   // of the blocks of a shared U-Net
  int agreed_ = -1, step_ = -1;
};

/// New tokens behind a key/value cache.
class CachedChain {
 public:
  CachedChain(program::Program& program, const ModelShape& shape, const StepOptions& options)
      : shape_(shape), options_(options), head_(static_cast<int64_t>(shape.blocks.size()) - 1) {
    using program::Lifetime;
    const int64_t batch = options.micro_batch_size, rows = batch * options.tokens;
    tokens_ = draft::declare(program, {"prompt." + std::to_string(options.tokens), 1, Dtype::kInt32,
                                       rows, Lifetime::kResident});
    logits_ = draft::declare(
        program, {"logits", 1, options.dtype, batch * shape.vocabulary, Lifetime::kResident});
    activation_ = draft::declare(program, {"x", head_, options.dtype, rows * shape.options.width});
    cache_ =
        draft::declare(program, {"cache", shape.options.layers, Dtype::kByte,
                                 cache_bytes(shape, batch, options.cache_tokens, options.dtype),
                                 Lifetime::kResident});
    position_ = draft::declare(program, {"position", 1, Dtype::kInt64, 1, Lifetime::kResident,
                                         program::Category::kActivations, program::Tier::kHost});
  }

  MicroStep micro_step() const {
    MicroStep step;
    for (int64_t b = 0; b <= head_; ++b) step.visits.push_back(visit(b));
    return step;
  }

 private:
  Visit visit(int64_t block) const {
    const BlockShape& b = shape_.blocks[static_cast<size_t>(block)];
    const int64_t batch = options_.micro_batch_size;
    Op op =
        draft::block_op(draft::kForwardCached, block, {0, static_cast<int64_t>(b.segments.size())});
    op.attributes[draft::kBatch] = batch;
    op.attributes[draft::kLength] = options_.tokens;
    op.attributes[draft::kCapacity] = options_.cache_tokens;
    const BlockSizes sizes = block_sizes(shape_, block, batch, options_.tokens, options_.dtype);
    draft::set_flops(op, sizes.forward_flops, sizes.attention_flops);
    // Attention reaches back over the cache: scratch as for a whole sequence.
    op.attributes[draft::kWorkspace] =
        block_sizes(shape_, block, batch, options_.cache_tokens, options_.dtype)
            .forward_workspace_bytes;
    const auto add = [&](int array, int64_t index, Access access, int slot) {
      draft::add_operand(op, array, {index}, access, slot);
    };
    add(tokens_, 0, Access::kRead, draft::kTokens);
    add(position_, 0, Access::kRead, draft::kPosition);
    if (block > 0) add(activation_, block - 1, Access::kRead, draft::kInput);
    if (block < head_)
      add(activation_, block, Access::kWrite, draft::kOutput);
    else
      add(logits_, 0, Access::kWrite, draft::kOutput);
    if (b.kind == BlockKind::kTransformer) add(cache_, block - 1, Access::kUpdate, draft::kCache);
    Visit v;
    v.block = block;
    v.needs = b.unit;
    v.ops = {std::move(op)};
    if (block > 0) v.frees = {{activation_, {block - 1}}};
    return v;
  }

  const ModelShape& shape_;
  const StepOptions options_;
  const int64_t head_;
  int tokens_ = -1, logits_ = -1, activation_ = -1, cache_ = -1, position_ = -1;
};

}  // namespace

void order(draft::Draft& draft, const ModelShape& shape, const StepOptions& options) {
  if (options.purpose == Purpose::kPublish || options.purpose == Purpose::kBorder) return;
  const int64_t count = micro_batches_of(options);
  draft.schedule = {count, {{1, count - 1}}, {}};
  if (options.purpose == Purpose::kGenerate) {
    const auto chain = std::make_shared<const CachedChain>(draft.program, shape, options);
    draft.schedule.micro_step = [chain](int64_t, const program::Index&) {
      return chain->micro_step();
    };
    return;
  }
  const auto chain = std::make_shared<const Chain>(draft, shape, options);
  draft.schedule.micro_step = [chain](int64_t number, const program::Index& later) {
    return chain->micro_step(number, later);
  };
}

}  // namespace strait::strategy
