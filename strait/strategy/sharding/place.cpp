#include "strait/strategy/sharding/place.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "strait/draft/block_kernels.h"
#include "strait/program/roll.h"
#include "strait/strategy/sharding/movement.h"

namespace strait::strategy {
namespace {

using draft::MicroStep;
using draft::Purpose;
using draft::Visit;
using program::Access;
using program::Node;
using program::Op;
using program::Operand;

/// Whether the kernel of an op has an operand of blocks. Transfers have no kernel.
bool takes(const Op& op, draft::BlockOperand operand) {
  return op.kernel != nullptr && op.kernel->operands.size() == draft::kNumBlockOperands &&
         op.kernel->operands[operand].count != program::Count::kNone;
}

/// Moves units around the visits of one micro-step after another: what is left under way of the one
/// before ends during this one's forward pass, and the first gathers of the next one begin during
/// this one's last backward. After the last micro-step nothing is in flight.
class Mover {
 public:
  Mover(const Movement& movement, const Placement& placement, const draft::Draft& draft,
        size_t units, bool unchanged)
      : movement_(movement),
        placement_(placement),
        parts_(draft.splits_backward),
        shared_(units, false),
        begun_(units, false),
        live_(units, false),
        ready_(units, false),
        kept_(units, false),
        source_(units, GatherSource::kShards),
        copied_(units, unchanged) {
    for (const draft::SharedUnit& shared : draft.shared) shared_[shared.unit] = true;
  }

  std::vector<Node> write(const MicroStep& step);
  /// Whether this one and another write the same next.
  bool stands_as(const Mover& other) const;

 private:
  /// Gathers of the visits as far ahead of the current one as the placement says, of those that are
  /// not under way yet, in order. Brief ones do not count, because nothing hides behind them.
  /// Behind the visits come those of the next micro-step, which are the same, up to `end`.
  void gather_ahead(const MicroStep& step, size_t current, size_t end);
  std::vector<Operand> freed_before(const MicroStep& step, size_t current) const;
  GatherSource source_of(int64_t unit);
  /// What stands between the gather of a unit and its use.
  void make_ready(int64_t unit);
  void compute(const Visit& visit);
  /// Zeroes the gradient of a unit whose other blocks are visited by ranks of other classes: those
  /// here make a part of it. So do visits, where the backward pass is split.
  void clear_parts(int64_t unit);
  std::vector<Operand> bounded() const;
  Operand gradient(int64_t unit) const;
  /// Of one of the first transformer blocks the copy may stay for a later visit of the micro-step.
  void release(const MicroStep& step, size_t current);
  /// Of the unit in the micro-step before: its gradient is about to be written anew.
  void end_reduction(int64_t unit);
  void after_contribution(const Visit& visit);
  /// The next stage of every reduction under way, or of so many of the newest: a brief visit
  /// computes too little for the transfers of the others to end behind it.
  void advance_reductions(size_t newest = SIZE_MAX);

  bool reduces() const { return !under_way_.empty(); }

  /// A reduction under way, with the stages that are not written yet.
  struct Reduction {
    int64_t unit = 0;
    bool adds = false;
    ReducePhase phase = ReducePhase::kInner;
    Stages stages;
  };
  const Movement& movement_;
  const Placement& placement_;
  std::vector<Node> nodes_;
  const bool parts_;                    // a visit adds its part of a gradient
  std::vector<bool> shared_;            // unit -> ranks of other classes hold it, too
  std::vector<bool> begun_;             // unit -> earlier micro-steps have made a gradient
  std::vector<int64_t> contributions_;  // visits of each unit still to come in this backward
  std::set<int64_t> made_;              // units with a gradient in this micro-step
  std::vector<int64_t> reduced_;        // units in the order of their reductions in this backward
  std::vector<bool> live_;              // unit -> its gathered copy is alive
  std::vector<bool> ready_;             // unit -> and may be used
  std::vector<bool> kept_;              // unit -> it stays for a later visit
  std::vector<GatherSource> source_;    // unit -> of its last gather
  std::vector<bool> copied_;            // unit -> this program has made its secondary copy
  std::vector<Reduction> under_way_;    // newest first
  std::vector<Operand> awaited_;        // by the next op, whatever it does
  size_t next_gather_ = 0;              // visit, from the first of this micro-step
};

std::vector<Node> Mover::write(const MicroStep& step) {
  nodes_.assign(step.begin.begin(), step.begin.end());
  reduced_.clear();
  made_.clear();
  contributions_.assign(live_.size(), 0);
  for (const Visit& visit : step.visits)
    if (visit.makes) ++contributions_[static_cast<size_t>(*visit.makes)];
  const size_t end = step.repeats ? 2 * step.visits.size() : step.visits.size();
  for (size_t i = 0; i < step.visits.size(); ++i) {
    const Visit& visit = step.visits[i];
    gather_ahead(step, i, end);
    if (visit.needs) make_ready(*visit.needs);
    if (visit.makes) {
      end_reduction(*visit.makes);
      clear_parts(*visit.makes);
    }
    compute(visit);
    if (visit.needs) release(step, i);
    if (visit.makes)
      after_contribution(visit);
    else if (!visit.brief)
      advance_reductions();
  }
  for (const int64_t unit : made_) begun_[unit] = true;
  next_gather_ -= std::min(next_gather_, step.visits.size());
  while (step.last && reduces()) advance_reductions();
  for (const Operand& operand : step.frees) nodes_.push_back(draft::free_op(operand));
  return std::move(nodes_);
}

void Mover::gather_ahead(const MicroStep& step, size_t current, size_t end) {
  const std::vector<Visit>& visits = step.visits;
  size_t last = current;
  for (int64_t left = placement_.prefetch_units; left > 0 && last + 1 < end;)
    left -= visits[++last % visits.size()].brief ? 0 : 1;
  for (; next_gather_ <= last; ++next_gather_) {
    const Visit& visit = visits[next_gather_ % visits.size()];
    if (!visit.needs) continue;
    const int64_t unit = *visit.needs;
    if (kept_[unit] && next_gather_ < visits.size()) continue;
    if (live_[unit]) return;  // its earlier copy is still in use; gathered again once that is freed
    source_[unit] = source_of(unit);
    movement_.gather(unit, source_[unit], freed_before(step, current), nodes_);
    live_[unit] = true;
  }
}

/// The copy that the visit before has freed: two alive at most.
std::vector<Operand> Mover::freed_before(const MicroStep& step, size_t current) const {
  if (!movement_.copies() || current == 0 || !step.visits[current - 1].needs) return {};
  return {movement_.weights(*step.visits[current - 1].needs)};
}

GatherSource Mover::source_of(int64_t unit) {
  if (placement_.secondary == 1) return GatherSource::kShards;
  if (copied_[unit]) return GatherSource::kCopy;
  copied_[unit] = true;
  return GatherSource::kShardsAndCopy;
}

void Mover::make_ready(int64_t unit) {
  if (ready_[unit]) return;
  movement_.ready(unit, source_[unit], nodes_);
  ready_[unit] = true;
}

/// Made, added to that of earlier micro-steps, or, where another visit has made its part in this
/// one, updated.
Operand Mover::gradient(int64_t unit) const {
  const bool before = begun_[unit] && !movement_.gradient_is_fresh();
  const bool made = made_.contains(unit);
  const Access access = before || (parts_ && made) ? Access::kAdd
                        : made                     ? Access::kUpdate
                                                   : Access::kWrite;
  return program::as(movement_.gradient(unit), access, draft::kGradient);
}

/// Two gradients alive at most: who makes one waits for the reduction before the last.
std::vector<Operand> Mover::bounded() const {
  return reduced_.size() < 2 ? std::vector<Operand>{}
                             : movement_.reduction_buffers(reduced_[reduced_.size() - 2]);
}

void Mover::clear_parts(int64_t unit) {
  if (!(shared_[unit] || parts_) || gradient(unit).access != Access::kWrite) return;
  Op op = draft::kernel_op(kClear);
  op.writes = {program::as(movement_.gradient(unit), Access::kWrite)};
  op.waits = bounded();
  nodes_.push_back(std::move(op));
  made_.insert(unit);
}

void Mover::compute(const Visit& visit) {
  bool begun = false;
  for (const Op& written : visit.ops) {
    Op op = written;
    if (visit.needs && takes(op, draft::kWeights))
      op.reads.push_back(
          program::as(movement_.weights(*visit.needs), Access::kRead, draft::kWeights));
    if (visit.makes && takes(op, draft::kGradient)) {
      Operand made = gradient(*visit.makes);
      // Further ops of a visit make other parts of what the first one has begun.
      if (begun && made.access == Access::kWrite) made.access = Access::kUpdate;
      begun = true;
      op.writes.push_back(made);
      for (const Operand& operand : bounded()) op.waits.push_back(operand);
    }
    for (const Operand& operand : std::exchange(awaited_, {})) op.waits.push_back(operand);
    nodes_.push_back(std::move(op));
  }
  for (const Operand& operand : visit.frees) nodes_.push_back(draft::free_op(operand));
}

void Mover::release(const MicroStep& step, size_t current) {
  const Visit& visit = step.visits[current];
  const int64_t unit = *visit.needs;
  const auto begin = step.visits.begin() + static_cast<std::ptrdiff_t>(current) + 1;
  kept_[unit] = visit.block > 0 && visit.block <= placement_.cached_layers &&
                std::any_of(begin, step.visits.end(),
                            [&](const Visit& later) { return later.needs == unit; });
  if (kept_[unit]) return;
  movement_.release(unit, nodes_);
  live_[unit] = ready_[unit] = false;
}

void Mover::end_reduction(int64_t unit) {
  const auto is_of_unit = [&](const Reduction& reduction) { return reduction.unit == unit; };
  while (std::ranges::any_of(under_way_, is_of_unit)) advance_reductions();
}

void Mover::after_contribution(const Visit& visit) {
  const int64_t unit = *visit.makes;
  made_.insert(unit);
  if (--contributions_[unit] > 0) return;
  const ReducePhase phase = visit.last ? ReducePhase::kLast : ReducePhase::kInner;
  // The new one first: its transfer runs while what arrived for older ones is decoded.
  const bool adds = begun_[unit];
  under_way_.insert(under_way_.begin(), {unit, adds, phase, movement_.reduce(unit, adds, phase)});
  advance_reductions(visit.brief ? 1 : SIZE_MAX);
  reduced_.push_back(unit);
  if (placement_.hides_reductions) return;
  while (reduces()) advance_reductions();
  awaited_ = movement_.reduction_buffers(unit);
  awaited_.push_back(movement_.gradient(unit));
}

void Mover::advance_reductions(size_t newest) {
  for (size_t i = 0; i < std::min(newest, under_way_.size()); ++i) {
    std::vector<Node>& stage = under_way_[i].stages.front();
    nodes_.insert(nodes_.end(), std::make_move_iterator(stage.begin()),
                  std::make_move_iterator(stage.end()));
    under_way_[i].stages.erase(under_way_[i].stages.begin());
  }
  std::erase_if(under_way_, [](const Reduction& reduction) { return reduction.stages.empty(); });
}

bool Mover::stands_as(const Mover& other) const {
  const auto same_reduction = [](const Reduction& one, const Reduction& two) {
    return one.unit == two.unit && one.adds == two.adds && one.phase == two.phase &&
           one.stages.size() == two.stages.size();
  };
  return begun_ == other.begun_ && live_ == other.live_ && ready_ == other.ready_ &&
         kept_ == other.kept_ && source_ == other.source_ && copied_ == other.copied_ &&
         awaited_ == other.awaited_ && next_gather_ == other.next_gather_ &&
         std::ranges::equal(under_way_, other.under_way_, same_reduction);
}

/// Micro-steps one after another, equal ones as Repeats. The first of these are not equal where
/// they end reductions of those before, which add to nothing or are of other units.
class Writer {
 public:
  Writer(draft::Draft& draft, Mover& mover) : draft_(draft), mover_(mover) {}

  void write() {
    for (const draft::EqualSteps& equal : draft_.schedule.equal) {
      write_until(equal.begin);
      while (next_ + equal.period <= equal.end && !repeat(equal)) write_until(next_ + equal.period);
    }
    write_until(draft_.schedule.micro_steps);
  }

 private:
  void write_until(int64_t end) {
    for (; next_ < end; ++next_)
      draft::append_rolled(draft_.program, mover_.write(draft_.schedule.micro_step(next_, {})),
                           "i");
  }

  /// The turns that are left, if the next one leaves the mover as it finds it, so that those behind
  /// it, which are equal, are written like it; otherwise nothing.
  bool repeat(const draft::EqualSteps& equal) {
    program::Program& program = draft_.program;
    program::Repeat repeat;
    repeat.variable = "a";
    repeat.loop = program.num_loops;
    repeat.first = next_;
    repeat.step = equal.advance;
    repeat.count = (equal.end - next_) / equal.period;
    const program::Index later{-repeat.first, repeat.loop, 1};
    Mover turn = mover_;
    std::vector<std::vector<Node>> steps;
    for (int64_t at = next_; at < next_ + equal.period; ++at)
      steps.push_back(turn.write(draft_.schedule.micro_step(at, later)));
    if (!turn.stands_as(mover_)) return false;
    ++program.num_loops;
    for (std::vector<Node>& step : steps)
      std::ranges::move(program::roll(std::move(step), program.num_loops, "i", program.arrays),
                        std::back_inserter(repeat.body));
    next_ += repeat.count * equal.period;
    program.body.push_back(std::move(repeat));
    return true;
  }

  draft::Draft& draft_;
  Mover& mover_;
  int64_t next_ = 0;
};

draft::Shard shard_of(int64_t unit, const UnitValues& values, const Movement& movement) {
  draft::Shard shard;
  shard.unit = unit;
  shard.group = values.inner_group();
  shard.partition = values.partition(unit);
  if (values.has(UnitValue::kGradient)) shard.gradient = values.operand(UnitValue::kGradient, unit);
  shard.own_weights = values.has(UnitValue::kMaster);
  shard.weights = values.operand(shard.own_weights ? UnitValue::kMaster : UnitValue::kShard, unit);
  for (int64_t nth = 0; nth < values.num_moments(); ++nth)
    shard.moments.push_back(values.operand(UnitValue::kMoment, unit, nth));
  for (int64_t nth = 0; nth < values.num_residuals(); ++nth)
    if (values.has_residual(nth))
      shard.residuals.push_back(
          {values.operand(UnitValue::kResidual, unit, nth), values.residual_ends(nth)});
  movement.publish(unit, shard.publish);
  const PieceFormat format = values.weight_pieces(unit);
  if (shard.own_weights && values.is_numbers(format.codec) && format.codec_text() == "bf16")
    shard.rounded = values.operand(UnitValue::kShard, unit);
  return shard;
}

}  // namespace

void place(draft::Draft& draft, const ModelShape& shape, const Placement& placement,
           const Cluster& cluster, const draft::StepOptions& options) {
  const bool trains = options.purpose == Purpose::kTrain;
  UnitValues values(draft, shape, placement, cluster, options);
  if (trains || options.purpose == Purpose::kEvaluate) values.declare_gathered(true);
  if (trains) values.declare_gradients(options);
  const Operand agreed{draft::find_array(draft.program, "agreed"), {}};
  draft.agreement = trains ? values.replica_group() : values.world_group();
  const Operand step{draft::find_array(draft.program, "step"), {}};
  const Movement movement(draft, values, placement, cluster, {agreed, step});
  draft.agreement_stream = movement.agreement_stream();
  for (const int64_t unit : draft.units) draft.shards.push_back(shard_of(unit, values, movement));
  Mover mover(movement, placement, draft, shape.units.size(), options.weights_unchanged);
  Writer(draft, mover).write();
}

}  // namespace strait::strategy
