#include "strait/strategy/pipeline/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "strait/base/errors.h"
#include "strait/draft/block_kernels.h"

namespace strait::strategy {
namespace {

using draft::MicroStep;
using draft::Visit;
using program::Access;
using program::Index;
using program::Op;
using program::Operand;

/// Blocks [begin, end) of a chain.
struct Blocks {
  int64_t begin = 0, end = 0;
  bool holds(int64_t block) const { return begin <= block && block < end; }
};

/// Transformer blocks in equal parts; the embedding goes with the first, the head with the last.
Blocks blocks_of(const ModelShape& shape, int64_t stages, int64_t stage) {
  const int64_t all = static_cast<int64_t>(shape.blocks.size()), layers = all - 2;
  const auto border = [&](int64_t at) { return 1 + layers * at / stages; };
  return {stage == 0 ? 0 : border(stage), stage == stages - 1 ? all : border(stage + 1)};
}

void require_blocks(const ModelShape& shape, int64_t stages) {
  const int64_t layers = static_cast<int64_t>(shape.blocks.size()) - 2;
  if (stages == 1 || stages <= layers) return;
  ErrorPlace place;
  place.key = "mesh.axes.stage";
  throw UserError(fmt::format("mesh.axes.stage = {}: every stage needs a transformer block, and "
                              "model.shape.layers = {}; the nearest valid value is {}",
                              stages, layers, std::max<int64_t>(layers, 1)),
                  place);
}

/// The first operand of a visit's ops that stands in a slot of block kernels.
std::optional<Operand> find_operand(const Visit& visit, draft::BlockOperand slot) {
  for (const Op& op : visit.ops)
    for (const auto* operands : {&op.reads, &op.writes})
      if (const Operand* found = program::operand_in(*operands, slot); op.kernel && found)
        return *found;
  return std::nullopt;
}

/// One stage's part of the micro-batches of `whole`.
class Stage {
 public:
  Stage(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster, bool trains)
      : stages_(draft.mesh.axis("stage").size),
        stage_(draft.mesh.coordinate(draft.rank, "stage")),
        blocks_(blocks_of(shape, stages_, stage_)),
        whole_(draft.schedule),
        trains_(trains) {
    group_ = draft::add_group(draft.program, cluster,
                              {"stages", stages_, draft.mesh.axis("stage").stride});
    downward_ = draft::add_lane(draft.program, cluster, group_);
    upward_ = draft::add_lane(draft.program, cluster, group_);
    if (trains_) give_places(draft.program);
  }

  const Blocks& blocks() const { return blocks_; }

  draft::Schedule schedule() const {
    const int64_t count = whole_.micro_steps, early = warm_up();
    return {count + early, early + 1, count - 1,
            [stage = *this](int64_t number, const Index& index) {
              return stage.micro_step(number, index);
            }};
  }

 private:
  bool last() const { return stage_ == stages_ - 1; }
  /// Forwards before the first backward.
  int64_t warm_up() const {
    return trains_ ? std::min(stages_ - 1 - stage_, whole_.micro_steps) : 0;
  }

  /// Values that exist so far are a micro-batch's: one place for each that is in flight.
  void give_places(program::Program& program) {
    places_ = std::min(stages_ - stage_, whole_.micro_steps);
    for (program::ValueArray& array : program.arrays) {
      const bool own = array.lifetime == program::Lifetime::kTransient;
      counts_.push_back(own ? array.count : 0);
      if (own) array.count *= places_;
    }
  }

  /// A micro-step is the forward of one micro-batch and the backward of an earlier one.
  MicroStep micro_step(int64_t number, const Index& index) const {
    const int64_t count = whole_.micro_steps, early = warm_up();
    MicroStep step;
    step.accumulates = number > early;
    step.last = number == count + early - 1;
    step.repeats = number >= early && number + 1 < count;
    if (number < count) add_forward(number, index, step);
    if (number >= early) {
      Index earlier = index;
      earlier.constant -= early;
      add_backward(number - early, earlier, step);
    }
    return step;
  }

  void add_forward(int64_t micro_batch, const Index& index, MicroStep& step) const {
    MicroStep whole = whole_.micro_step(micro_batch, index);
    for (Op& op : whole.begin) {
      if (op.kernel == &draft::kLoad) op.attributes[draft::kCounted] = int64_t{last() ? 1 : 0};
      step.begin.push_back(placed(std::move(op), index));
    }
    for (Visit& visit : whole.visits) {
      if (visit.makes) break;
      if (!blocks_.holds(visit.block)) continue;
      if (visit.block == blocks_.begin && stage_ > 0)
        receive(visit, draft::kInput, downward_, stage_ - 1);
      if (visit.block == blocks_.end - 1 && !last())
        send(visit, draft::kOutput, downward_, stage_ + 1);
      step.visits.push_back(placed(std::move(visit), index));
    }
  }

  void add_backward(int64_t micro_batch, const Index& index, MicroStep& step) const {
    MicroStep whole = whole_.micro_step(micro_batch, index);
    const auto first = std::ranges::find_if(
        whole.visits, [](const Visit& visit) { return visit.makes.has_value(); });
    for (auto visit = first; visit != whole.visits.end(); ++visit) {
      if (!blocks_.holds(visit->block)) continue;
      if (visit->block == blocks_.end - 1 && !last())
        receive(*visit, draft::kOutputGradient, upward_, stage_ + 1);
      if (visit->block == blocks_.begin && stage_ > 0)
        send(*visit, draft::kInputGradient, upward_, stage_ - 1);
      step.visits.push_back(placed(std::move(*visit), index));
    }
    for (const Operand& operand : whole.frees) step.frees.push_back(placed(operand, index));
  }

  Op transfer(program::OpKind kind, int stream, int64_t peer) const {
    Op op;
    op.kind = kind;
    op.group = group_;
    op.stream = stream;
    op.peer = {peer};
    return op;
  }

  void receive(Visit& visit, draft::BlockOperand slot, int stream, int64_t peer) const {
    Op op = transfer(program::OpKind::kReceive, stream, peer);
    op.writes = {program::as(*find_operand(visit, slot), Access::kWrite)};
    visit.ops.insert(visit.ops.begin(), std::move(op));
  }

  /// Sends what the visit makes, which nobody here needs any more.
  void send(Visit& visit, draft::BlockOperand slot, int stream, int64_t peer) const {
    Op op = transfer(program::OpKind::kSend, stream, peer);
    const Operand made = *find_operand(visit, slot);
    op.reads = {program::as(made, Access::kRead)};
    visit.ops.push_back(std::move(op));
    visit.frees.push_back(made);
  }

  /// A value of the micro-batch with this index, in its place.
  Operand placed(Operand operand, const Index& micro_batch) const {
    const auto array = static_cast<size_t>(operand.array);
    if (places_ == 1 || array >= counts_.size() || counts_[array] == 0) return operand;
    const int64_t count = counts_[array], all = count * places_;
    const int64_t first = operand.index.constant + count * micro_batch.constant;
    operand.index = {(first % all + all) % all, micro_batch.loop, count * micro_batch.scale};
    if (!operand.index.is_constant()) operand.index.modulo = all;
    return operand;
  }

  Op placed(Op op, const Index& micro_batch) const {
    for (auto* operands : {&op.reads, &op.writes, &op.waits})
      for (Operand& operand : *operands) operand = placed(operand, micro_batch);
    return op;
  }

  Visit placed(Visit visit, const Index& micro_batch) const {
    for (Op& op : visit.ops) op = placed(std::move(op), micro_batch);
    for (Operand& operand : visit.frees) operand = placed(operand, micro_batch);
    return visit;
  }

  const int64_t stages_, stage_;
  const Blocks blocks_;
  const draft::Schedule whole_;
  const bool trains_;
  int group_ = -1, downward_ = -1, upward_ = -1;
  int64_t places_ = 1;
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
                 const Blocks& blocks) {
  const int64_t first = shape.blocks.front().unit, last = shape.blocks.back().unit;
  if (first == last) {
    const int group = draft::add_group(draft.program, cluster, ends_of(draft.mesh));
    const int stream = draft::add_lane(draft.program, cluster, group);
    const bool end = blocks.begin == 0 || blocks.end == static_cast<int64_t>(shape.blocks.size());
    if (end) draft.shared.push_back({first, group, stream});
  }
  std::erase_if(draft.units, [&](int64_t unit) {
    for (int64_t block = blocks.begin; block < blocks.end; ++block)
      if (shape.blocks[static_cast<size_t>(block)].unit == unit) return false;
    return true;
  });
}

}  // namespace

std::vector<std::vector<int64_t>> stage_classes(const ModelShape& shape, const Mesh& mesh) {
  const int64_t stages = mesh.axis("stage").size;
  require_blocks(shape, stages);
  std::vector<std::vector<int64_t>> classes(static_cast<size_t>(stages));
  for (int64_t rank = 0; stages > 1 && rank < mesh.ranks(); ++rank)
    classes[static_cast<size_t>(mesh.coordinate(rank, "stage"))].push_back(rank);
  return classes;
}

std::vector<int64_t> first_stages(const ModelShape& shape, const Mesh& mesh) {
  const int64_t stages = mesh.axis("stage").size;
  require_blocks(shape, stages);
  std::vector<int64_t> first(shape.units.size(), stages);
  for (int64_t stage = 0; stage < stages; ++stage) {
    const Blocks blocks = blocks_of(shape, stages, stage);
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      int64_t& known = first[static_cast<size_t>(shape.blocks[static_cast<size_t>(block)].unit)];
      known = std::min(known, stage);
    }
  }
  return first;
}

void pipeline(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
              const draft::StepOptions& options) {
  if (draft.mesh.axis("stage").size == 1) return;
  const bool trains = options.purpose == draft::Purpose::kTrain;
  const Stage stage(draft, shape, cluster, trains);
  share_units(draft, shape, cluster, stage.blocks());
  if (draft.schedule.micro_steps > 0) draft.schedule = stage.schedule();
}

}  // namespace strait::strategy
