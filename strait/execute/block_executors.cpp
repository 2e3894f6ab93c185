// Executors of what a model computes.
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/comm/sums.h"
#include "strait/draft/head_kernels.h"
#include "strait/draft/segment_ops.h"
#include "strait/draft/shard_kernels.h"
#include "strait/execute/environment.h"
#include "strait/kernel/parallel.h"
#include "strait/model/tensor_blocks.h"
#include "strait/model/unet_blocks.h"
#include "strait/shape/block_layout.h"
#include "strait/strategy/finish/step_values.h"

namespace strait::execute {
namespace {

using draft::BlockAttribute;
using program::Access;
using runtime::Bound;
using runtime::Execute;
using runtime::Instance;

/// The micro-batch that lies in the operands of a block kernel.
model::Batch batch_of(const Instance& instance) {
  const Bound& tokens = *instance.find_read(draft::kTokens);
  model::Batch batch;
  batch.batch = instance.integer(draft::kBatch);
  batch.tokens = instance.integer(draft::kLength);
  batch.sequences = static_cast<const int64_t*>(instance.read(draft::kSequences));
  const int64_t rows = batch.batch * batch.tokens;
  const int64_t held = tokens.bytes / static_cast<int64_t>(sizeof(int32_t));
  batch.inputs = static_cast<const int32_t*>(tokens.data);
  if (held >= 2 * rows) batch.targets = batch.inputs + rows;
  if (held >= 3 * rows) batch.document_starts = batch.targets + rows;
  if (held > 3 * rows) batch.row_starts = batch.document_starts + rows;
  return batch;
}

/// Of the ranks that share blocks, which all see the same batch, the first counts for all.
bool counts_here(const Environment& environment, const Instance& instance) {
  const Layout& layout = environment.layout;
  return layout.x_place(instance.rank).coordinate == 0 &&
         layout.y_place(instance.rank).coordinate == 0;
}

/// What all calls of blocks point to.
struct Context {
  model::Settings settings;
  model::Batch batch;

  Context(const Environment& environment, const Instance& instance)
      : settings(environment.settings), batch(batch_of(instance)) {
    const AxisPlace share = environment.layout.sequence_place(instance.rank);
    batch.sharers = share.size;
    batch.sharer = share.coordinate;
    batch.head_sharers = environment.model.shape().head_ranks;
    if (environment.layout_of_batch && *environment.layout_of_batch)
      take_layout(**environment.layout_of_batch);
    settings.training = instance.integer(draft::kTraining) != 0;
    if (const void* step = instance.read(draft::kStepValues))
      settings.loss_scale *= static_cast<const double*>(step)[strategy::kLossScale] *
                             static_cast<const double*>(step)[strategy::kTokenWeight];
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Where documents begin is in the layout. Attention may have other rows than the batch.
  void take_layout(const sequence::RankLayout& layout) {
    batch.layout = &layout;
    batch.document_starts = nullptr;
  }

  template <class Call>
  void fill(Call& call, const Instance& instance) const {
    call.settings = &settings;
    call.batch = &batch;
    call.weights = instance.read(draft::kWeights);
    call.workspace = instance.workspace;
    if (const Bound* gradient = instance.find_write(draft::kGradient)) {
      call.gradient = gradient->data;
      call.accumulate = gradient->access == Access::kAdd;
    }
  }
};

const model::Block& block_of(const Environment& environment, const Instance& instance) {
  return environment.model.block(instance.index(draft::kBlock));
}

model::RankPart part_of(const Environment& environment, const Instance& instance) {
  return {environment.layout.x_place(instance.rank).coordinate,
          environment.layout.y_place(instance.rank).coordinate};
}

/// A call of a whole block.
struct BlockCall : Context {
  model::Call call;
  const model::Block& block;

  BlockCall(const Environment& environment, const Instance& instance)
      : Context(environment, instance), block(block_of(environment, instance)) {
    fill(call, instance);
    call.input = instance.read(draft::kInput);
    call.output = instance.write(draft::kOutput);
    call.output_gradient = instance.read(draft::kOutputGradient);
    call.input_gradient = instance.write(draft::kInputGradient);
    call.part = part_of(environment, instance);
  }
};

void forward(const Environment& environment, const Instance& instance) {
  BlockCall c(environment, instance);
  c.call.saved = instance.write(draft::kSaved);
  const auto& segments = program::attribute<program::IntegerRange>(*instance.op, draft::kSegments);
  c.block.forward(c.call, static_cast<int>(segments.begin), static_cast<int>(segments.end));
}

/// With or without gradients, as the operands say.
void loss(const Environment& environment, const Instance& instance) {
  BlockCall c(environment, instance);
  if (counts_here(environment, instance))
    c.call.loss_sum = static_cast<double*>(instance.write(draft::kAgreed)) + strategy::kLossSum;
  c.block.forward_backward(c.call);
}

void backward(const Environment& environment, const Instance& instance) {
  BlockCall c(environment, instance);
  c.call.saved = instance.read(draft::kSaved);
  c.block.backward(c.call);
}

/// A call of a range of segments.
struct RangeCall : Context {
  model::SegmentCall call;
  SegmentRange range;
  const model::SegmentedBlock* segments;

  RangeCall(const Environment& environment, const Instance& instance)
      : Context(environment, instance),
        range(draft::range_of(*instance.op)),
        segments(block_of(environment, instance).segments()) {
    ensure(segments != nullptr, "a range of segments of a block that has none");
    fill(call, instance);
    const BlockExtent extent = held_extent(environment);
    const model::RankPart part = part_of(environment, instance);
    call.first_head = part.x * extent.heads;
    call.first_column = part.y * extent.width;
    call.first_row = extent.row_split > 1 ? part.x * extent.own_rows() : 0;
    for (const auto* operands : {&instance.reads, &instance.writes})
      for (size_t at = 0, end = 0; at < operands->size(); at = end) {
        const Bound* first = &(*operands)[at];  // of several joined values
        for (end = at + 1; end < operands->size() && (*operands)[end].slot == first->slot; ++end)
          if (std::less<>()((*operands)[end].data, first->data)) first = &(*operands)[end];
        give(*first, extent);
      }
    if (draft::works_on_rows(*instance.op)) take_rows(instance, extent, part.x);
  }

 private:
  /// Of bundles: a plan may have given attention and linear modules different rows.
  BlockExtent held_extent(const Environment& environment) const {
    const int64_t tokens = batch.layout ? batch.layout->rows : batch.tokens;
    BlockExtent extent =
        block_extent(environment.model.shape(), batch.batch, tokens, settings.dtype);
    if (!batch.layout) return extent;
    extent.attends_apart = batch.layout->remapping == sequence::Remapping::kResidual;
    extent.attention_rows =
        std::max<int64_t>(extent.attends_apart ? 1 : 0, batch.layout->attention_rows);
    return extent;
  }

  /// What the segments use, from its first row on. Joined values that they write begin there, and
  /// so do those that they read of a group.
  void take_rows(const Instance& instance, BlockExtent extent, int64_t position) {
    program::IntegerRange rows = draft::rows_of(*instance.op);
    if (draft::works_on_shard(*instance.op)) {
      const int64_t shard = position + instance.integer(draft::kShard);
      const int64_t first = shard % extent.row_split * extent.own_rows();
      rows = {first + rows.begin, first + rows.end};
    }
    ValueSet placed;
    for (const Bound& written : instance.writes)
      if (instance.array(written).joined) placed |= draft::values_in(written.slot);
    for (const Bound& read : instance.reads)
      if (instance.array(read).joined && instance.array(read).group >= 0)
        placed |= draft::values_in(read.slot);
    const Phase phase = draft::phase_of(*instance.op);
    const RangeUses uses = range_uses(range, phase, true, extent.row_split > 1);
    if (phase == Phase::kForward && range.holds(Segment::kQkvAdd)) keep_positions(rows);
    extent.rows = rows.begin;
    extent.attention_rows = extent.attends_apart ? rows.begin : 0;
    for (int number = 0; number < kNumBlockValues; ++number) {
      const auto value = static_cast<BlockValue>(number);
      const bool used = (uses.reads | uses.writes | uses.inside)[static_cast<size_t>(number)];
      if (call[value] == nullptr || placed[static_cast<size_t>(number)]) continue;
      call.give(value, used ? static_cast<const char*>(call[value]) +
                                  value_elements(value, extent) * dtype_bytes(settings.dtype)
                            : nullptr);
    }
    batch.batch = 1;
    batch.tokens = rows.end - rows.begin;
  }

  /// Where tokens stand in their sequences, which rows alone do not tell.
  void keep_positions(const program::IntegerRange& rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row)
      positions_.positions.push_back(static_cast<int32_t>(batch.position(row)));
    batch.layout = &positions_;
  }

  sequence::RankLayout positions_;

  void give(const Bound& operand, const BlockExtent& extent) {
    if (operand.slot == draft::kSaved)
      return call.give(saved_offsets(extent), operand.data, settings.dtype);
    if (operand.slot == draft::kBundle)
      return call.give(bundle_offsets(extent), operand.data, settings.dtype);
    if (operand.slot == draft::kDeferred)
      return call.give(deferred_offsets(extent), operand.data, settings.dtype);
    const ValueSet values = draft::values_in(operand.slot);
    for (int value = 0; value < kNumBlockValues; ++value)
      if (values[static_cast<size_t>(value)])
        call.give(static_cast<BlockValue>(value), operand.data);
  }
};

void forward_segments(const Environment& environment, const Instance& instance) {
  const RangeCall c(environment, instance);
  c.segments->forward(c.call, c.range);
}

void backward_input(const Environment& environment, const Instance& instance) {
  const RangeCall c(environment, instance);
  c.segments->backward_input(c.call, c.range);
}

/// Elements for which another thread is worth it.
constexpr int64_t kSumUnit = 16384;

/// This rank's part stands among those of the others.
void sum_shards(const Environment& environment, const Instance& instance) {
  const AxisPlace place = environment.layout.x_place(instance.rank);
  const Bound& sum = *instance.find_write(draft::kShardSum);
  std::vector<const void*> parts(static_cast<size_t>(place.size));
  for (const Bound& read : instance.reads) {
    const program::ValueArray& array = instance.array(read);
    const int64_t pieces = array.count / place.size;
    const int64_t from = (place.coordinate + read.index / pieces) % place.size;
    if (read.index % pieces == 0) parts[static_cast<size_t>(from)] = read.data;
  }
  const Dtype dtype = instance.array(sum).dtype;
  kernel::parallel_ranges(sum.bytes / dtype_bytes(dtype), kSumUnit, environment.settings.threads,
                          [&](int64_t begin, int64_t end) {
                            const auto at = [&](const void* data) {
                              return static_cast<const char*>(data) + begin * dtype_bytes(dtype);
                            };
                            std::vector<const void*> from;
                            for (const void* part : parts) from.push_back(at(part));
                            comm::sum_in_order(dtype, from, const_cast<char*>(at(sum.data)),
                                               end - begin, false);
                          });
}

void backward_weight(const Environment& environment, const Instance& instance) {
  const RangeCall c(environment, instance);
  c.segments->backward_weight(c.call, c.range);
}

void normalize_again(const Environment& environment, const Instance& instance) {
  const RangeCall c(environment, instance);
  c.segments->normalize_again(c.call, static_cast<Segment>(c.range.begin));
}

model::RingRound ring_round(const Instance& instance) {
  return {instance.integer(draft::kRound),
          {instance.integer(draft::kPart), instance.integer(draft::kParts)}};
}

void pack_keys(const Environment& environment, const Instance& instance) {
  const RangeCall c(environment, instance);
  c.segments->pack_keys(c.call, ring_round(instance).part);
}

void attend_round(const Environment& environment, const Instance& instance) {
  const RangeCall c(environment, instance);
  c.segments->attend_round(c.call, instance.integer(draft::kRound));
}

void attend_round_input(const Environment& environment, const Instance& instance) {
  const RangeCall c(environment, instance);
  model::RingRound where = ring_round(instance);
  where.pairs = static_cast<sequence::OwnPairs>(instance.integer(draft::kRingPairs));
  c.segments->attend_round_input(c.call, where);
}

void move_rows(RemapStep step, const Environment& environment, const Instance& instance) {
  const RangeCall c(environment, instance);
  const auto& rows = program::attribute<program::IntegerRange>(*instance.op, draft::kRows);
  c.segments->move_rows(c.call, step, {rows.begin, rows.end});
}

void exchange_heads(RemapStep step, const Environment& environment, const Instance& instance) {
  const RangeCall c(environment, instance);
  c.segments->exchange_heads(c.call, step,
                             {instance.integer(draft::kGroup), instance.integer(draft::kRound)});
}

void add_key_gradient(const Environment& environment, const Instance& instance) {
  const RangeCall c(environment, instance);
  c.segments->add_key_gradient(c.call, ring_round(instance));
}

using GroupStep = void (model::SegmentedBlock::*)(const model::SegmentCall&,
                                                  const model::GroupRound&) const;
void group_step(GroupStep step, const Environment& environment, const Instance& instance) {
  const RangeCall c(environment, instance);
  const double began = environment.attention_seconds ? now_seconds() : 0;
  model::GroupRound where{instance.integer(draft::kGroup), instance.integer(draft::kRound)};
  if (instance.op->kernel == &draft::kAttendGroupInput)
    where.pairs = static_cast<sequence::OwnPairs>(instance.integer(draft::kPairs));
  (c.segments->*step)(c.call, where);
  if (environment.attention_seconds) *environment.attention_seconds += now_seconds() - began;
}

/// A step of an embedding or a head that ranks share.
void end_step(EndStep step, const Environment& environment, const Instance& instance) {
  BlockCall c(environment, instance);
  if (step == EndStep::kLoss && counts_here(environment, instance))
    c.call.loss_sum = static_cast<double*>(instance.write(draft::kAgreed)) + strategy::kLossSum;
  model::EndValues values{};
  for (int number = 0; number < kNumEndValues; ++number) {
    const int slot = draft::end_slot(static_cast<EndValue>(number));
    const Bound* bound = instance.find_write(slot);
    if (!bound) bound = instance.find_read(slot);
    if (bound) values[static_cast<size_t>(number)] = bound->data;
  }
  c.block.run_step(c.call, step, values);
}

/// An op of a block of a U-Net that ranks share.
void unet_op(UnetValue value, bool backward, const Environment& environment,
             const Instance& instance) {
  BlockCall c(environment, instance);
  const auto* shared = dynamic_cast<const model::SharedUnetBlock*>(&c.block);
  ensure(shared != nullptr, "a part of a block that nobody shares");
  void* const agreed = instance.write(draft::kAgreed);
  if (agreed && counts_here(environment, instance))
    c.call.loss_sum = static_cast<double*>(agreed) + strategy::kLossSum;
  const auto buffer = [&](int slot) -> model::UnetBuffer {
    const Bound* written = instance.find_write(slot);
    const Bound* bound = written ? written : instance.find_read(slot);
    if (!bound) return {};
    return {bound->data, written != nullptr && written->access == Access::kUpdate};
  };
  model::UnetBuffers buffers;
  for (int number = 0; number < kNumUnetValues; ++number) {
    const auto other = static_cast<UnetValue>(number);
    const auto at = static_cast<size_t>(number);
    buffers.values[at] = buffer(draft::unet_slot(other, false));
    buffers.gradients[at] = buffer(draft::unet_slot(other, true));
  }
  buffers.adds_input = buffer(draft::kInputGradient).adds;
  shared->run(value, backward, c.call, buffers);
}

void forward_cached(const Environment& environment, const Instance& instance) {
  BlockCall c(environment, instance);
  c.call.cache = instance.write(draft::kCache);
  c.call.cache_capacity = instance.integer(draft::kCapacity);
  c.call.position = *static_cast<const int64_t*>(instance.read(draft::kPosition));
  const ModelShape& shape = environment.model.shape();
  if (shape.blocks[static_cast<size_t>(instance.index(draft::kBlock))].kind == BlockKind::kHead) {
    c.call.logits = c.call.output;
    c.call.output = nullptr;
  }
  c.block.forward_cached(c.call);
}

/// What leaves for a device is checked while it is on the host.
void check(const BatchBuffer& buffer, const model::Model& model) {
  const int64_t rows = static_cast<int64_t>(buffer.inputs.size());
  const int64_t sequences = static_cast<int64_t>(buffer.sequences.size());
  const model::Batch batch{sequences, rows / sequences, buffer.inputs.data(),
                           buffer.targets.data()};
  model::check_tokens(batch, model.shape().vocabulary);
  model::check_targets(batch, model.shape().vocabulary);
}

void load(const Environment& environment, const BatchSource& source, BatchBuffer& buffer,
          const Instance& instance) {
  const auto* step = static_cast<const double*>(instance.read(draft::kStepValues));
  source(static_cast<int64_t>(step[strategy::kFirstSequence]), instance.index(draft::kMicroBatch),
         buffer);
  if (environment.on_device) check(buffer, environment.model);
  const Bound& tokens = *instance.find_write(draft::kTokens);
  char* out = static_cast<char*>(tokens.data);
  char* const end = out + tokens.bytes;
  for (const auto* words :
       {&buffer.inputs, &buffer.targets, &buffer.document_starts, &buffer.row_starts}) {
    if (out == end) break;  // without documents, or without exchanged heads
    const int64_t bytes = static_cast<int64_t>(words->size() * sizeof((*words)[0]));
    environment.arithmetic.put(words->data(), out, bytes);
    out += bytes;
  }
  std::ranges::copy(buffer.sequences, static_cast<int64_t*>(instance.write(draft::kSequences)));
  if (instance.integer(draft::kCounted) == 0 || !counts_here(environment, instance)) return;
  const auto counted =
      std::ranges::count_if(buffer.targets, [](int32_t target) { return target >= 0; });
  environment.arithmetic.add(
      static_cast<double>(counted),
      static_cast<double*>(instance.write(draft::kAgreed)) + strategy::kLossCount);
}

}  // namespace

void add_block_executors(runtime::Executors& executors, const Environment& environment,
                         BatchSource source) {
  const auto add = [&](const program::Kernel& kernel, auto* execute) {
    executors.add(kernel, Execute([&environment, execute](const Instance& instance) {
                    execute(environment, instance);
                  }));
  };
  add(draft::kForward, &forward);
  add(draft::kForwardBackward, &loss);
  add(draft::kForwardLoss, &loss);
  add(draft::kBackward, &backward);
  add(draft::kForwardCached, &forward_cached);
  add(draft::kForwardSegments, &forward_segments);
  add(draft::kBackwardInput, &backward_input);
  add(draft::kBackwardWeight, &backward_weight);
  add(draft::kForwardRows, &forward_segments);
  add(draft::kBackwardInputRows, &backward_input);
  add(draft::kForwardShard, &forward_segments);
  add(draft::kBackwardInputShard, &backward_input);
  add(draft::kSumShards, &sum_shards);
  add(draft::kNormalizeAgain, &normalize_again);
  add(draft::kPackKeys, &pack_keys);
  add(draft::kAttendRound, &attend_round);
  add(draft::kAttendRoundInput, &attend_round_input);
  add(draft::kAddKeyGradient, &add_key_gradient);
  const auto add_group_step = [&](const program::Kernel& kernel, GroupStep step) {
    executors.add(kernel, Execute([&environment, step](const Instance& instance) {
                    group_step(step, environment, instance);
                  }));
  };
  add_group_step(draft::kPackGroup, &model::SegmentedBlock::pack_group);
  add_group_step(draft::kAttendGroup, &model::SegmentedBlock::attend_group);
  add_group_step(draft::kAttendGroupInput, &model::SegmentedBlock::attend_group_input);
  add_group_step(draft::kAddGroupGradient, &model::SegmentedBlock::add_group_gradient);
  for (int number = 0; number < kNumHeadSteps; ++number) {
    const auto step = static_cast<HeadStep>(number);
    executors.add(draft::head_kernel(step), Execute([&environment, step](const Instance& instance) {
                    const RangeCall c(environment, instance);
                    c.segments->run_heads(c.call, step);
                  }));
  }
  for (int number = 0; number < kNumRemapSteps; ++number) {
    const auto step = static_cast<RemapStep>(number);
    executors.add(draft::remap_kernel(step),
                  Execute([&environment, step](const Instance& instance) {
                    move_rows(step, environment, instance);
                  }));
  }
  for (int number = 0; number < draft::kNumExchangeSteps; ++number) {
    const auto step = static_cast<RemapStep>(number);
    executors.add(draft::exchange_kernel(step),
                  Execute([&environment, step](const Instance& instance) {
                    exchange_heads(step, environment, instance);
                  }));
  }
  for (int number = 0; number < kNumUnetTargets; ++number)
    for (const bool backward : {false, true}) {
      const auto value = static_cast<UnetValue>(number);
      executors.add(draft::unet_kernel(value, backward),
                    Execute([&environment, value, backward](const Instance& instance) {
                      unet_op(value, backward, environment, instance);
                    }));
    }
  for (int number = 0; number < kNumEndSteps; ++number) {
    const auto step = static_cast<EndStep>(number);
    executors.add(draft::end_kernel(step), Execute([&environment, step](const Instance& instance) {
                    end_step(step, environment, instance);
                  }));
  }
  // The buffer is memory that is used again, and holds nothing that the next execution reads.
  executors.add(
      draft::kLoad,
      Execute([&environment, source = std::move(source), buffer = std::make_shared<BatchBuffer>()](
                  const Instance& instance) { load(environment, source, *buffer, instance); }));
}

}  // namespace strait::execute
