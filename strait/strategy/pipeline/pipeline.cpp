#include "strait/strategy/pipeline/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "strait/base/errors.h"
#include "strait/codec/codec.h"
#include "strait/draft/block_kernels.h"
#include "strait/program/classes.h"
#include "strait/strategy/pipeline/kernels.h"
#include "strait/strategy/pipeline/orders.h"

namespace strait::strategy {
namespace {

using draft::MicroStep;
using draft::Visit;
using draft::Work;
using program::Access;
using program::Index;
using program::Op;
using program::Operand;

void require_blocks(const ModelShape& shape, int64_t stages, int64_t chunks) {
  const int64_t between = static_cast<int64_t>(shape.blocks.size()) - 2;
  if (stages * chunks == 1 || stages * chunks <= between) return;
  ErrorPlace place;
  if (stages > between) {
    place.key = "mesh.axes.stage";
    throw UserError(fmt::format("mesh.axes.stage = {}: every stage needs one of the {} blocks "
                                "between the first and the last; the nearest valid value is {}",
                                stages, between, std::max<int64_t>(between, 1)),
                    place);
  }
  place.key = "pipeline.chunks_per_stage";
  throw UserError(fmt::format("pipeline.chunks_per_stage = {}: every chunk of {} stages needs one "
                              "of the {} blocks between the first and the last; the nearest valid "
                              "value is {}",
                              chunks, stages, between, between / stages),
                  place);
}

/// Blocks between the first and the last in equal parts, or one more or less.
int64_t border(const draft::PipelineForm& form, int64_t at, int64_t runs, int64_t layers) {
  return form.cuts.empty() ? 1 + layers * at / runs : form.cuts[static_cast<size_t>(at) - 1];
}

/// The first operand of a visit's ops that stands in a slot of block kernels.
std::optional<Operand> find_operand(const Visit& visit, draft::BlockOperand slot) {
  for (const Op& op : visit.ops)
    for (const auto* operands : {&op.reads, &op.writes})
      if (const Operand* found = program::operand_in(*operands, slot); op.kernel && found)
        return *found;
  return std::nullopt;
}

OrderPlace place_of(const Mesh& mesh, int64_t rank, const draft::StepOptions& options) {
  const bool trains = options.purpose == draft::Purpose::kTrain;
  return {mesh.axis("stage").size, mesh.coordinate(rank, "stage"), options.pipeline.chunks,
          trains ? options.accumulation : 1};
}

Tasks tasks_for(const draft::StepOptions& options, const OrderPlace& place) {
  return options.purpose == draft::Purpose::kTrain ? stage_tasks(options.pipeline.order, place)
                                                   : forward_tasks(place);
}

/// One stage's part of the micro-batches of `whole`, in its order.
class Stage {
 public:
  Stage(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
        const draft::StepOptions& options)
      : place_(place_of(draft.mesh, draft.rank, options)),
        whole_(draft.schedule),
        steps_(tasks_for(options, place_), place_.micro_batches, place_.stages * place_.chunks),
        runs_(block_runs(shape, place_.stages, options.pipeline)),
        ahead_(messages_ahead(options.pipeline.order)),
        codec_(codec::parse_codec(options.pipeline.codec)),
        agreed_(draft::find_array(draft.program, "agreed")),
        trains_(options.purpose == draft::Purpose::kTrain) {
    group_ = draft::add_group(draft.program, cluster,
                              {"stages", place_.stages, draft.mesh.axis("stage").stride});
    for (auto* lanes : {&downward_, &upward_})
      for (int64_t lane = 0; lane < num_lanes(); ++lane)
        lanes->push_back(draft::add_lane(draft.program, cluster, group_));
    if (whole_.micro_steps > 0) find_messages();
    if (is_coded() && whole_.micro_steps > 0) declare_pieces(draft.program);
    give_places(draft.program);
  }

  /// Of the stage, chunk by chunk.
  std::vector<BlockRange> blocks() const {
    std::vector<BlockRange> own;
    for (int64_t chunk = 0; chunk < place_.chunks; ++chunk) own.push_back(blocks_of(chunk));
    return own;
  }

  draft::Schedule schedule() const {
    return {steps_.count(), steps_.equal(), [stage = *this](int64_t number, const Index& later) {
              return stage.micro_step(number, later);
            }};
  }

 private:
  /// What a stage sends waits until its neighbour takes it, what it receives does not: on another
  /// lane. Neighbours take turns, and with chunks the last sends to the first.
  int64_t num_lanes() const {
    return place_.chunks > 1 ? 3 : std::min<int64_t>(place_.stages - 1, 2);
  }
  int64_t run_of(int64_t chunk) const { return chunk * place_.stages + place_.stage; }
  const BlockRange& blocks_of(int64_t chunk) const {
    return runs_[static_cast<size_t>(run_of(chunk))];
  }
  bool first(int64_t chunk) const { return run_of(chunk) == 0; }
  bool last(int64_t chunk) const { return run_of(chunk) == static_cast<int64_t>(runs_.size()) - 1; }
  int64_t before() const { return (place_.stage + place_.stages - 1) % place_.stages; }
  int64_t behind() const { return (place_.stage + 1) % place_.stages; }
  /// Of messages between a stage and the one behind it.
  int lane(const std::vector<int>& lanes, int64_t stage) const {
    return stage == place_.stages - 1 ? lanes.back() : lanes[static_cast<size_t>(stage % 2)];
  }

  bool is_coded() const { return codec_.kind != codec::CodecKind::kNone; }

  /// What a chunk sends to a neighbour, or gets from it.
  struct Message {
    std::optional<Operand> numbers;  // none: it is the first or the last one
    Operand piece = {};              // of these, where they are coded
    int64_t piece_bytes = 0, metadata_bytes = 0;
  };
  const Message& message_of(int64_t chunk, bool down, bool sent) const {
    return messages_[static_cast<size_t>(4 * chunk + (down ? 0 : 2) + (sent ? 0 : 1))];
  }

  /// Of every chunk what goes down and up, each as it is sent and as it is received.
  void find_messages() {
    const MicroStep& step = own_step(0);
    for (int64_t chunk = 0; chunk < place_.chunks; ++chunk)
      for (const Work work : {Work::kForwards, Work::kBackwards})
        for (const bool sent : {true, false}) {
          const bool down = work == Work::kForwards, at_end = down == sent;
          Message& message = messages_.emplace_back();
          if (at_end ? last(chunk) : first(chunk)) continue;
          const int64_t block = at_end ? blocks_of(chunk).end - 1 : blocks_of(chunk).begin;
          const auto visit = std::ranges::find_if(step.visits, [&](const Visit& other) {
            return other.work == work && other.block == block;
          });
          if (visit == step.visits.end()) continue;  // nothing goes back where nothing is trained
          message.numbers = *find_operand(*visit, down   ? (sent ? draft::kOutput : draft::kInput)
                                                  : sent ? draft::kInputGradient
                                                         : draft::kOutputGradient);
        }
  }

  /// Pieces of equal size share an array, which is one for a chain of transformer blocks.
  void declare_pieces(program::Program& program) {
    std::map<int64_t, std::vector<Message*>> by_elements;
    for (Message& message : messages_) {
      if (!message.numbers) continue;
      const program::ValueArray& numbers =
          program.arrays[static_cast<size_t>(message.numbers->array)];
      message.piece_bytes = codec::encoded_bytes(codec_, numbers.partition.elements, numbers.dtype);
      message.metadata_bytes = codec::metadata_bytes(codec_, numbers.partition.elements);
      by_elements[numbers.partition.elements].push_back(&message);
    }
    for (const auto& [elements, messages] : by_elements) {
      const int array = draft::declare(
          program, {by_elements.size() == 1 ? "piece" : fmt::format("piece.{}", elements),
                    std::ssize(messages), Dtype::kByte, messages.front()->piece_bytes,
                    program::Lifetime::kTransient, program::Category::kBuffers});
      for (size_t index = 0; index < messages.size(); ++index)
        messages[index]->piece = {array, {static_cast<int64_t>(index)}};
    }
  }

  /// Values that exist so far are a micro-batch's: one place for each that is in flight.
  void give_places(program::Program& program) {
    if (!trains_) return;
    for (program::ValueArray& array : program.arrays) {
      const bool own = array.lifetime == program::Lifetime::kTransient;
      counts_.push_back(own ? array.count : 0);
      if (own) array.count *= steps_.places();
    }
  }

  MicroStep micro_step(int64_t number, const Index& later) const {
    MicroStep step;
    step.last = number == steps_.count() - 1;
    step.repeats = steps_.repeats(number);
    for (const Task* task = steps_.begin(number); task != steps_.end(number); ++task)
      add(*task, later, step);
    return step;
  }

  /// The stage's visits of a micro-batch. Micro-batches differ in the numbers that their loads
  /// have; only the last one's visits are others, too.
  const MicroStep& own_step(int64_t micro_batch) const {
    const bool last = micro_batch == whole_.micro_steps - 1;
    std::optional<MicroStep>& known = own_steps_[last ? 1 : 0];
    if (!known) {
      known = whole_.micro_step(micro_batch, {});
      std::erase_if(known->visits, [&](const Visit& visit) {
        for (int64_t chunk = 0; chunk < place_.chunks; ++chunk)
          if (blocks_of(chunk).holds(visit.block)) return false;
        return true;
      });
    }
    return *known;
  }

  void add(const Task& task, const Index& later, MicroStep& step) const {
    const MicroStep& whole = own_step(task.micro_batch);
    const Index index = draft::micro_batch_index(task.micro_batch, later);
    if (task.work == Work::kForwards && task.chunk == 0) {
      for (Op op : whole.begin) {
        if (op.kernel == &draft::kLoad) {
          op.attributes[draft::kMicroBatch] = index;
          op.attributes[draft::kCounted] = int64_t{last(place_.chunks - 1) ? 1 : 0};
        }
        step.begin.push_back(placed(std::move(op), index));
      }
    }
    for (const Visit& one : whole.visits) {
      if (one.work != task.work || !blocks_of(task.chunk).holds(one.block)) continue;
      Visit visit = one;
      const std::optional<Operand> sent = exchange(visit, task);
      step.visits.push_back(placed(std::move(visit), index));
      if (sent) await_sent(*sent, task, later, step.visits.back());
    }
    if (ends(task))
      for (const Operand& operand : whole.frees) step.frees.push_back(placed(operand, index));
  }

  /// Whether it is the last of its micro-batch.
  bool ends(const Task& task) const {
    if (!trains_) return task.chunk == place_.chunks - 1;
    return task.chunk == 0 && task.work == (steps_.splits() ? Work::kWeights : Work::kBackwards);
  }

  /// What a visit at either end of a run gets from its neighbour and gives to it, which is
  /// returned.
  std::optional<Operand> exchange(Visit& visit, const Task& task) const {
    const BlockRange& blocks = blocks_of(task.chunk);
    const bool at_begin = visit.block == blocks.begin && !first(task.chunk);
    const bool at_end = visit.block == blocks.end - 1 && !last(task.chunk);
    if (visit.work == Work::kForwards) {
      if (at_begin) receive(visit, task, draft::kInput);
      if (at_end) return send(visit, task, draft::kOutput);
    } else if (visit.work == Work::kBackwards) {
      if (at_end) receive(visit, task, draft::kOutputGradient);
      if (at_begin) return send(visit, task, draft::kInputGradient);
    }
    return std::nullopt;
  }

  /// What a neighbour has not taken takes memory: who sends waits for what it has sent some tasks
  /// before.
  void await_sent(const Operand& sent, const Task& task, const Index& later, Visit& visit) const {
    const int64_t number = number_of(task, place_) - ahead_;
    if (!trains_ || number < 0) return;
    const Task before = nth_task(task.work, number, place_);
    const bool down = task.work == Work::kForwards;
    if (down ? last(before.chunk) : first(before.chunk)) return;
    const Message& message = message_of(before.chunk, down, true);
    const Operand earlier =
        program::as(is_coded() ? message.piece : *message.numbers, sent.access, sent.slot);
    const auto computes =
        std::ranges::find_if(visit.ops, [](const Op& op) { return op.kernel != nullptr; });
    computes->waits.push_back(placed(earlier, draft::micro_batch_index(before.micro_batch, later)));
  }

  /// A message to or from the neighbour: forwards go down, backwards up.
  Op message(program::OpKind kind, Work work) const {
    const bool down = work == Work::kForwards;
    const bool to_behind = (kind == program::OpKind::kSend) == down;
    Op op;
    op.kind = kind;
    op.group = group_;
    op.stream = lane(down ? downward_ : upward_, to_behind ? place_.stage : before());
    op.peer = {to_behind ? behind() : before()};
    op.attributes = {std::string(down ? "activation of micro-batch" : "gradient of micro-batch"),
                     Index{0},
                     fmt::format("{} stage {}", kind == program::OpKind::kSend ? "to" : "from",
                                 op.peer.constant)};
    return op;
  }

  void mark_coded(Op& op, const Message& message) const {
    if (!is_coded()) return;
    op.codec = codec::print_codec(codec_);
    op.piece_bytes = message.piece_bytes;
    op.metadata_bytes = message.metadata_bytes;
  }

  Op coding(const program::Kernel& kernel, const Message& message, bool encodes) const {
    const Operand &from = encodes ? *message.numbers : message.piece,
                  &to = encodes ? message.piece : *message.numbers;
    Op op = draft::kernel_op(kernel);
    op.reads = {program::as(from, Access::kRead, kActivationFrom)};
    op.writes = {program::as(to, Access::kWrite, kActivationTo)};
    if (encodes) op.writes.push_back({agreed_, {}, Access::kAdd, kActivationAgreed});
    mark_coded(op, message);
    return op;
  }

  void receive(Visit& visit, const Task& task, draft::BlockOperand slot) const {
    const Message& from = message_of(task.chunk, task.work == Work::kForwards, false);
    const Operand come = is_coded() ? from.piece : *find_operand(visit, slot);
    Op op = message(program::OpKind::kReceive, task.work);
    op.writes = {program::as(come, Access::kWrite)};
    mark_coded(op, from);
    std::vector<Op> ops = {std::move(op)};
    if (is_coded()) {
      ops.push_back(coding(kDecodeActivation, from, false));
      visit.frees.push_back(come);
    }
    visit.ops.insert(visit.ops.begin(), ops.begin(), ops.end());
  }

  /// Sends what the visit makes, which nobody here needs any more. Returns what is on its way.
  Operand send(Visit& visit, const Task& task, draft::BlockOperand slot) const {
    const Operand made = *find_operand(visit, slot);
    const Message& to = message_of(task.chunk, task.work == Work::kForwards, true);
    const Operand goes = is_coded() ? to.piece : made;
    if (is_coded()) {
      visit.ops.push_back(coding(kEncodeActivation, to, true));
      visit.frees.push_back(made);
    }
    Op op = message(program::OpKind::kSend, task.work);
    op.reads = {program::as(goes, Access::kRead)};
    mark_coded(op, to);
    visit.ops.push_back(std::move(op));
    visit.frees.push_back(goes);
    return goes;
  }

  /// A value of the micro-batch with this index, in its place.
  Operand placed(Operand operand, const Index& micro_batch) const {
    const auto array = static_cast<size_t>(operand.array);
    if (steps_.places() == 1 || array >= counts_.size() || counts_[array] == 0) return operand;
    const int64_t count = counts_[array], all = count * steps_.places();
    const int64_t first = operand.index.constant + count * micro_batch.constant;
    operand.index = {(first % all + all) % all, micro_batch.loop, count * micro_batch.scale};
    if (!operand.index.is_constant()) operand.index.modulo = all;
    return operand;
  }

  Op placed(Op op, const Index& micro_batch) const {
    for (auto* operands : {&op.reads, &op.writes, &op.waits})
      for (Operand& operand : *operands) operand = placed(operand, micro_batch);
    // What the op is of, for those who wait for it.
    if (program::is_message(op.kind))
      op.attributes[1] = micro_batch;
    else if (op.attributes.size() > draft::kInFlight)
      op.attributes[draft::kInFlight] = micro_batch;
    return op;
  }

  Visit placed(Visit visit, const Index& micro_batch) const {
    for (Op& op : visit.ops) op = placed(std::move(op), micro_batch);
    for (Operand& operand : visit.frees) operand = placed(operand, micro_batch);
    return visit;
  }

  const OrderPlace place_;
  const draft::Schedule whole_;
  const TaskSteps steps_;
  const std::vector<BlockRange> runs_;
  const int64_t ahead_;
  const codec::CodecSpec codec_;
  const int agreed_;
  mutable std::array<std::optional<MicroStep>, 2> own_steps_;  // of all micro-batches but the last
  std::vector<Message> messages_;
  const bool trains_;
  int group_ = -1;
  std::vector<int> downward_, upward_;
  std::vector<int64_t> counts_;  // [array] values of one micro-batch, 0 = not a micro-batch's
};

/// The first and the last rank along the axis, for every place beside it.
program::Group ends_of(const Mesh& mesh) {
  const MeshAxis& axis = mesh.axis("stage");
  if (axis.size == 2) return {"ends", 2, axis.stride};
  std::vector<std::vector<int64_t>> pairs;
  for (int64_t rank = 0; rank < mesh.ranks(); ++rank)
    if (mesh.coordinate(rank, "stage") == 0)
      pairs.push_back({rank, rank + (axis.size - 1) * axis.stride});
  return {.name = "ends", .size = 2, .lists = program::MemberLists(std::move(pairs))};
}

/// Keeps the units of the stage's blocks, and sums the gradient of one that both ends hold. All
/// stages declare the group and its stream, so that they number them alike.
void share_units(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
                 const std::vector<BlockRange>& blocks) {
  const int64_t first = shape.blocks.front().unit, last = shape.blocks.back().unit;
  if (first == last) {
    const int group = draft::add_group(draft.program, cluster, ends_of(draft.mesh));
    const int stream = draft::add_lane(draft.program, cluster, group);
    const bool end =
        blocks.front().begin == 0 || blocks.back().end == static_cast<int64_t>(shape.blocks.size());
    if (end) draft.shared.push_back({first, group, stream});
  }
  std::erase_if(draft.units, [&](int64_t unit) {
    for (const BlockRange& run : blocks)
      for (int64_t block = run.begin; block < run.end; ++block)
        if (shape.blocks[static_cast<size_t>(block)].unit == unit) return false;
    return true;
  });
}

}  // namespace

std::vector<BlockRange> block_runs(const ModelShape& shape, int64_t stages,
                                   const draft::PipelineForm& form) {
  require_blocks(shape, stages, form.chunks);
  const int64_t all = static_cast<int64_t>(shape.blocks.size()), runs = stages * form.chunks;
  std::vector<BlockRange> ranges;
  for (int64_t at = 0; at < runs; ++at)
    ranges.push_back({at == 0 ? 0 : border(form, at, runs, all - 2),
                      at == runs - 1 ? all : border(form, at + 1, runs, all - 2)});
  return ranges;
}

std::vector<std::vector<int64_t>> stage_classes(const ModelShape& shape, const Mesh& mesh,
                                                const draft::PipelineForm& form) {
  const int64_t stages = mesh.axis("stage").size;
  require_blocks(shape, stages, form.chunks);
  std::vector<std::vector<int64_t>> classes(static_cast<size_t>(stages));
  for (int64_t rank = 0; stages > 1 && rank < mesh.ranks(); ++rank)
    classes[static_cast<size_t>(mesh.coordinate(rank, "stage"))].push_back(rank);
  return classes;
}

std::vector<int64_t> first_stages(const ModelShape& shape, const Mesh& mesh,
                                  const draft::PipelineForm& form) {
  const int64_t stages = mesh.axis("stage").size;
  const std::vector<BlockRange> runs = block_runs(shape, stages, form);
  std::vector<int64_t> first(shape.units.size(), stages);
  for (size_t run = 0; run < runs.size(); ++run) {
    for (int64_t block = runs[run].begin; block < runs[run].end; ++block) {
      int64_t& known = first[static_cast<size_t>(shape.blocks[static_cast<size_t>(block)].unit)];
      known = std::min(known, static_cast<int64_t>(run) % stages);
    }
  }
  return first;
}

bool splits_backward(const Mesh& mesh, int64_t rank, const draft::StepOptions& options) {
  return options.purpose == draft::Purpose::kTrain && mesh.axis("stage").size > 1 &&
         has_split_backward(options.pipeline.order) && mesh.coordinate(rank, "stage") > 0;
}

void pipeline(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
              const draft::StepOptions& options) {
  if (draft.mesh.axis("stage").size == 1) return;
  const Stage stage(draft, shape, cluster, options);
  share_units(draft, shape, cluster, stage.blocks());
  if (draft.schedule.micro_steps > 0) draft.schedule = stage.schedule();
}

}  // namespace strait::strategy
