#include "strait/strategy/sync/sync.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "strait/draft/step_options.h"
#include "strait/layout/borders.h"
#include "strait/strategy/sync/kernels.h"

namespace strait::strategy {
namespace {

using draft::Draft;
using draft::kMasterState;
using draft::Shard;
using program::Access;
using program::Group;
using program::Lifetime;
using program::Node;
using program::Op;
using program::Operand;
using program::OpKind;

/// Units whose transfers are under way at once where a border waits for them.
constexpr size_t kUnderWay = 2;
constexpr int64_t kNeverAgain = int64_t{1} << 40;

/// The state of local steps that one unit has, as operands of one program.
struct UnitOperands {
  const Shard* shard = nullptr;
  Operand outer, velocity, difference, fresh, sum, pieces;
  codec::BorderedCodec codec = {};
  int64_t piece_bytes = 0;
};

Operand read(const Operand& operand, int slot = 0) {
  return program::as(operand, Access::kRead, slot);
}
Operand write(const Operand& operand, int slot = 0) {
  return program::as(operand, Access::kWrite, slot);
}
Operand update(const Operand& operand, int slot) {
  return program::as(operand, Access::kUpdate, slot);
}

/// Writes one border into the body of a draft.
class BorderWriter {
 public:
  BorderWriter(Draft& draft, const Policy& policy, const Border& border)
      : draft_(draft), program_(draft.program), policy_(policy), part_(border.part) {}

  void declare(const ModelShape& shape, const Cluster& cluster, int64_t fragment);
  void write_body();

 private:
  bool lands() const { return part_ == BorderPart::kLand || part_ == BorderPart::kLandLast; }
  bool sends() const { return !lands() && part_ != BorderPart::kExchange; }
  bool waits() const { return part_ == BorderPart::kAtOnce || part_ == BorderPart::kLast; }
  bool takes() const { return waits() || lands() || part_ == BorderPart::kRound; }
  /// Differences are state, which a launch leaves to who takes its result up.
  bool keeps() const { return policy_.delay > 0; }
  bool coded() const { return policy_.codec.kind != codec::CodecKind::kNone; }
  bool alone() const { return policy_.replicas == 1; }
  /// What the round before sent is still asked for when the new differences are there.
  bool keeps_old() const { return part_ == BorderPart::kRound && (policy_.eager || alone()); }
  /// Of what is sent and arrives in one border, or in different ones.
  Lifetime transferred() const;
  void declare_unit(const Shard& shard, const ModelShape& shape);
  int declare_beside(const Shard& shard, const char* letter, program::ValueArray like);
  Operand kept(const Shard& shard, const char* letter, const char* state, bool by_replica);
  Operand buffer(const Shard& shard, const char* letter, Lifetime lifetime, int64_t bytes = 0);
  void declare_transferred(const Shard& shard, const ModelShape& shape, UnitOperands& unit);
  void declare_scalars();
  Operand scalar(const char* name) const { return {draft::find_array(program_, name), {}}; }

  Op shard_op(const program::Kernel& kernel, const Shard& shard) const;
  Op transfer(OpKind kind) const;
  void subtract(const UnitOperands& unit, const Operand& into, std::vector<Node>& nodes) const;
  void launch(const UnitOperands& unit, std::vector<Node>& nodes) const;
  void send(const UnitOperands& unit, std::vector<Node>& nodes) const;
  void take(const UnitOperands& unit, std::vector<Node>& nodes) const;
  Op outer_step(const UnitOperands& unit) const;
  void agree(const UnitOperands& unit, std::vector<Node>& nodes) const;
  void round(const UnitOperands& unit, std::vector<Node>& nodes) const;
  void exchange(const UnitOperands& unit, std::vector<Node>& nodes) const;
  void publish(const UnitOperands& unit, std::vector<Node>& nodes) const;
  void forget(const UnitOperands& unit, std::vector<Node>& nodes) const;
  void report();
  void take_reports();

  Draft& draft_;
  program::Program& program_;
  const Policy& policy_;
  const BorderPart part_;
  int replicas_ = -1, stream_ = -1;
  std::vector<UnitOperands> units_;
  std::map<std::pair<std::string, int>, int> arrays_;  // [letter, weights' array]
  std::map<int64_t, int64_t> ordinal_;                 // of a unit among those of its fragment
  std::map<int, int64_t> most_units_;                  // [weights' array] of any fragment
};

void BorderWriter::declare(const ModelShape& shape, const Cluster& cluster, int64_t fragment) {
  const MeshAxis& axis = draft_.mesh.axis("replica");
  replicas_ = draft::add_group(program_, cluster, {"replicas", axis.size, axis.stride});
  stream_ = draft::add_lane(program_, cluster, replicas_);
  if (part_ != BorderPart::kExchange) declare_scalars();
  std::map<std::pair<int, int64_t>, int64_t> units;  // [weights' array, fragment]
  std::vector<const Shard*> of_border;
  for (const Shard& shard : draft_.shards) {
    const std::string& name = shape.units[static_cast<size_t>(shard.unit)].name;
    const int64_t its = policy_.fragment_of(name, shape.options.layers);
    ordinal_[shard.unit] = units[{shard.weights.array, its}]++;
    if (part_ == BorderPart::kExchange || its == fragment) of_border.push_back(&shard);
  }
  for (const auto& [key, count] : units)
    most_units_[key.first] = std::max(most_units_[key.first], count);
  for (const Shard* shard : of_border) declare_unit(*shard, shape);
}

Lifetime BorderWriter::transferred() const {
  switch (part_) {
    case BorderPart::kLaunch:
    case BorderPart::kRelaunch:
      return Lifetime::kCarryOut;
    case BorderPart::kLand:
    case BorderPart::kLandLast:
      return Lifetime::kCarryIn;
    case BorderPart::kRound:
      return Lifetime::kCarry;
    case BorderPart::kAtOnce:
    case BorderPart::kLast:
    case BorderPart::kExchange:
      break;
  }
  return Lifetime::kTransient;
}

/// The array of a letter beside an array of weights, of the optimizer's shards unless `like` says
/// how large its values are.
int BorderWriter::declare_beside(const Shard& shard, const char* letter, program::ValueArray like) {
  const auto [found, fresh] = arrays_.try_emplace({letter, shard.weights.array}, -1);
  if (!fresh) return found->second;
  const std::string& weights = program_.arrays[static_cast<size_t>(shard.weights.array)].name;
  like.name = letter + weights.substr(weights.find('.'));
  if (like.partition.elements == 0) {
    like.dtype = program_.arrays[static_cast<size_t>(shard.weights.array)].dtype;
    like.partition = shard.partition;
    like.group = shard.group;
  }
  program_.arrays.push_back(std::move(like));
  return found->second = static_cast<int>(program_.arrays.size()) - 1;
}

/// A value of every unit that outlives a step, under an address.
Operand BorderWriter::kept(const Shard& shard, const char* letter, const char* state,
                           bool by_replica) {
  const program::ValueArray& weights = program_.arrays[static_cast<size_t>(shard.weights.array)];
  program::ValueArray like;
  like.count = weights.count;
  like.lifetime = Lifetime::kResident;
  like.category = program::Category::kOptimizer;
  like.address = {state, weights.address.unit, false, by_replica};
  return {declare_beside(shard, letter, std::move(like)), shard.weights.index};
}

/// A value of the units of one fragment: the next fragment has the same memory.
Operand BorderWriter::buffer(const Shard& shard, const char* letter, Lifetime lifetime,
                             int64_t bytes) {
  program::ValueArray like;
  like.count = most_units_.at(shard.weights.array);
  like.lifetime = lifetime;
  if (bytes > 0) like.partition = {bytes, bytes}, like.dtype = Dtype::kByte;
  return {declare_beside(shard, letter, std::move(like)), {ordinal_.at(shard.unit)}};
}

void BorderWriter::declare_unit(const Shard& shard, const ModelShape& shape) {
  UnitOperands unit;
  unit.shard = &shard;
  // Eager replicas put their own news first, so their outer weights differ by it.
  unit.outer = kept(shard, "o", kMasterState, policy_.eager);
  if (takes()) unit.velocity = kept(shard, "u", kOuterMomentumState, policy_.eager);
  const bool differs = sends() || part_ == BorderPart::kLandLast || policy_.eager || alone();
  if (part_ != BorderPart::kExchange && differs)
    unit.difference = keeps() ? kept(shard, "d", kOuterGradientState, true)
                              : buffer(shard, "d", Lifetime::kTransient);
  if (keeps_old()) unit.fresh = buffer(shard, "f", Lifetime::kTransient);
  unit.sum = unit.difference;
  if (part_ != BorderPart::kExchange && !alone()) declare_transferred(shard, shape, unit);
  units_.push_back(unit);
}

void BorderWriter::declare_transferred(const Shard& shard, const ModelShape& shape,
                                       UnitOperands& unit) {
  if (!coded()) {
    if (!waits()) unit.sum = buffer(shard, "q", transferred());
    return;
  }
  unit.codec = bordered_codec(policy_.codec, shape, shard.unit, shard.partition);
  unit.piece_bytes = longest_piece(unit.codec, shard.partition);
  unit.pieces = buffer(shard, "Q", transferred(), policy_.replicas * unit.piece_bytes);
  if (takes()) unit.sum = buffer(shard, "q", Lifetime::kTransient);
}

void BorderWriter::declare_scalars() {
  const auto add = [&](const char* name, int64_t elements, Lifetime lifetime, program::Tier tier) {
    draft::declare(program_, {name, 1, Dtype::kFloat64, elements, lifetime,
                              program::Category::kBuffers, tier});
  };
  add("report", kNumBorderValues, transferred(), program::Tier::kDevice);
  add("border", kNumBorderValues, Lifetime::kResident, program::Tier::kHost);
}

Op BorderWriter::shard_op(const program::Kernel& kernel, const Shard& shard) const {
  Op op = draft::kernel_op(kernel);
  op.group = shard.group;
  op.partition = shard.partition;
  return op;
}

Op BorderWriter::transfer(OpKind kind) const {
  Op op;
  op.kind = kind;
  op.stream = stream_;
  op.group = replicas_;
  return op;
}

void BorderWriter::subtract(const UnitOperands& unit, const Operand& into,
                            std::vector<Node>& nodes) const {
  Op op = shard_op(kOuterGradient, *unit.shard);
  op.reads = {read(unit.outer, kDifferenceOuter), read(unit.shard->weights, kDifferenceLocal)};
  op.writes = {write(into, kDifference)};
  nodes.push_back(std::move(op));
}

/// The difference on its way: summed by an all-reduce, or gathered in pieces, of which every
/// replica makes the same sum in fp32, encoded once.
void BorderWriter::send(const UnitOperands& unit, std::vector<Node>& nodes) const {
  if (alone()) return;
  if (!coded()) {
    Op op = transfer(OpKind::kAllReduce);
    op.reads = {read(unit.difference)};
    op.writes = {write(unit.sum)};
    nodes.push_back(std::move(op));
    return;
  }
  const auto moves_pieces = [&](Op op) {
    op.group = replicas_;
    op.partition = {policy_.replicas * unit.piece_bytes, unit.piece_bytes};
    op.codec = codec::print_bordered(unit.codec);
    op.piece_bytes = unit.piece_bytes;
    op.metadata_bytes = unit.codec.scale_bytes;
    return op;
  };
  Op encode = moves_pieces(draft::kernel_op(kEncodeDifference));
  encode.reads = {read(unit.difference, kEncodedDifference)};
  encode.writes = {write(unit.pieces, kDifferencePieces)};
  nodes.push_back(std::move(encode));
  if (!keeps()) nodes.push_back(draft::free_op(unit.difference));
  Op gather = moves_pieces(transfer(OpKind::kAllGather));
  gather.reads = {read(unit.pieces)};
  gather.writes = {write(unit.pieces)};
  nodes.push_back(std::move(gather));
}

void BorderWriter::launch(const UnitOperands& unit, std::vector<Node>& nodes) const {
  if (part_ != BorderPart::kRelaunch) subtract(unit, unit.difference, nodes);
  send(unit, nodes);
}

Op BorderWriter::outer_step(const UnitOperands& unit) const {
  Op op = shard_op(kOuterStep, *unit.shard);
  const OuterRule& rule = policy_.outer;
  op.attributes = {policy_.replicas,
                   int64_t{rule.nesterov},
                   rule.learning_rate,
                   rule.momentum,
                   rule.clip,
                   rule.penalty,
                   rule.gap,
                   policy_.mixing,
                   int64_t{rule.follows_rate},
                   int64_t{policy_.one_round_late()}};
  op.reads = {read(unit.sum, kOuterSum)};
  if (policy_.eager) op.reads.push_back(read(unit.difference, kOuterSent));
  if (policy_.eager && part_ == BorderPart::kRound)
    op.reads.push_back(read(unit.fresh, kOuterFresh));
  if (!waits()) op.reads.push_back(read(scalar("border"), kOuterBorder));
  op.writes = {update(unit.velocity, kOuterVelocity), update(unit.outer, kOuterWeights),
               update(unit.shard->weights, kOuterLocal)};
  return op;
}

/// Eager replicas have had their own parts a border earlier than the others', and so once more in
/// the momentum: at the end all take the mean.
void BorderWriter::agree(const UnitOperands& unit, std::vector<Node>& nodes) const {
  for (const Operand& operand : {unit.outer, unit.velocity}) {
    Op sum = transfer(OpKind::kAllReduce);
    sum.reads = {read(operand)};
    sum.writes = {write(operand)};
    nodes.push_back(std::move(sum));
  }
  Op mean = shard_op(kOuterMean, *unit.shard);
  mean.attributes = {policy_.replicas};
  mean.writes = {update(unit.outer, kMeanOuter), update(unit.velocity, kMeanVelocity),
                 write(unit.shard->weights, kMeanLocal)};
  nodes.push_back(std::move(mean));
}

void BorderWriter::publish(const UnitOperands& unit, std::vector<Node>& nodes) const {
  nodes.insert(nodes.end(), unit.shard->publish.begin(), unit.shard->publish.end());
}

/// What was sent becomes 0: a longer run sends it anew, and finds that it is nothing.
void BorderWriter::forget(const UnitOperands& unit, std::vector<Node>& nodes) const {
  Op op = shard_op(kOuterGradient, *unit.shard);
  op.reads = {read(unit.outer, kDifferenceOuter), read(unit.outer, kDifferenceLocal)};
  op.writes = {write(unit.difference, kDifference)};
  nodes.push_back(std::move(op));
}

void BorderWriter::take(const UnitOperands& unit, std::vector<Node>& nodes) const {
  const bool pieces = !alone() && coded();
  if (pieces) {
    Op op = draft::kernel_op(kSumDifferences);
    op.group = replicas_;
    op.partition = {policy_.replicas * unit.piece_bytes, unit.piece_bytes};
    op.codec = codec::print_bordered(unit.codec);
    op.piece_bytes = unit.piece_bytes;
    op.reads = {read(unit.pieces, kSummedPieces)};
    op.writes = {write(unit.sum, kSumOfDifferences)};
    nodes.push_back(std::move(op));
    if (waits()) nodes.push_back(draft::free_op(unit.pieces));
  }
  nodes.push_back(outer_step(unit));
  if (pieces || !keeps()) nodes.push_back(draft::free_op(unit.sum));
  if (part_ == BorderPart::kLandLast && policy_.eager && !alone()) agree(unit, nodes);
  publish(unit, nodes);
}

/// What the round before sent is taken up; what this one has to send is computed before that
/// changes the weights.
void BorderWriter::round(const UnitOperands& unit, std::vector<Node>& nodes) const {
  if (keeps_old()) {
    subtract(unit, unit.fresh, nodes);
    take(unit, nodes);
    Op copy = shard_op(kKeepDifference, *unit.shard);
    copy.reads = {read(unit.fresh, kKeptFrom)};
    copy.writes = {write(unit.difference, kKept)};
    nodes.push_back(std::move(copy));
    nodes.push_back(draft::free_op(unit.fresh));
  } else {
    subtract(unit, unit.difference, nodes);
    take(unit, nodes);
  }
  send(unit, nodes);
}

void BorderWriter::exchange(const UnitOperands& unit, std::vector<Node>& nodes) const {
  Op op = shard_op(kExchangeWeights, *unit.shard);
  op.writes = {update(unit.outer, kExchangedOuter), update(unit.shard->weights, kExchangedLocal)};
  nodes.push_back(std::move(op));
  publish(unit, nodes);
}

void BorderWriter::report() {
  Op op = draft::kernel_op(kReportStep);
  op.reads = {part_ == BorderPart::kRelaunch ? read(scalar("border"), kReportedBorder)
                                             : read(scalar("agreed"), kReportedAgreed)};
  op.writes = {write(scalar("report"), kReportedScalars)};
  program_.body.push_back(std::move(op));
  if (alone()) return;
  Op sum = transfer(OpKind::kAllReduce);
  sum.reads = {read(scalar("report"))};
  sum.writes = {write(scalar("report"))};
  program_.body.push_back(std::move(sum));
}

void BorderWriter::take_reports() {
  Op op = draft::kernel_op(kTakeReports);
  op.reads = {read(scalar("report"), kTakenScalars)};
  op.writes = {write(scalar("border"), kTakenBorder)};
  program_.body.push_back(std::move(op));
  if (waits()) program_.body.push_back(draft::free_op(scalar("report")));
}

void BorderWriter::write_body() {
  std::vector<Node> nodes;
  if (part_ == BorderPart::kRound || lands()) take_reports();
  if (sends()) report();
  for (size_t at = 0; at < units_.size() + kUnderWay; ++at) {
    const bool starts = at < units_.size(), ends = at >= kUnderWay;
    switch (part_) {
      case BorderPart::kAtOnce:
      case BorderPart::kLast:
        if (starts) launch(units_[at], nodes);
        if (ends) take(units_[at - kUnderWay], nodes);
        break;
      case BorderPart::kLaunch:
      case BorderPart::kRelaunch:
        if (starts) launch(units_[at], nodes);
        break;
      case BorderPart::kLandLast:
        if (starts) take(units_[at], nodes);
        if (starts) forget(units_[at], nodes);
        break;
      case BorderPart::kLand:
        if (starts) take(units_[at], nodes);
        break;
      case BorderPart::kRound:
        if (starts) round(units_[at], nodes);
        break;
      case BorderPart::kExchange:
        if (starts) exchange(units_[at], nodes);
        break;
    }
  }
  draft::append_rolled(program_, std::move(nodes), "i");
  if (waits()) take_reports();
}

program::Rule rule_of(const std::string& purpose, const Border& border,
                      const program::Turns& turns) {
  program::Rule rule;
  rule.purpose = purpose;
  rule.kinds = {border_kind(border)};
  rule.turns = turns;
  return rule;
}

/// A last round may be shorter: the fragment has a border behind the last step, though none was due
/// there, unless a result that is under way ends its run.
bool ends_apart(const Policy& policy, int64_t fragment) {
  if (policy.steps == 0) return false;  // of no run
  const int64_t behind = policy.steps - policy.first_border(fragment);
  if (behind < 0) return true;
  if (policy.one_round_late()) return behind % policy.period != 0;
  return behind % policy.period >= std::max<int64_t>(policy.delay, 1);
}

}  // namespace

std::string border_kind(const Border& border) {
  switch (border.part) {
    case BorderPart::kAtOnce:
      return fmt::format("border-{}", border.fragment);
    case BorderPart::kLast:
      return fmt::format("last-{}", border.fragment);
    case BorderPart::kLaunch:
      return fmt::format("launch-{}", border.fragment);
    case BorderPart::kLand:
      return fmt::format("land-{}", border.fragment);
    case BorderPart::kLandLast:
      return fmt::format("land-last-{}", border.fragment);
    case BorderPart::kRound:
      return fmt::format("round-{}", border.fragment);
    case BorderPart::kRelaunch:
      return fmt::format("relaunch-{}", border.fragment);
    case BorderPart::kExchange:
      break;
  }
  return "exchange";
}

std::vector<Border> borders_of(const Policy& policy) {
  std::vector<Border> borders;
  const bool late = policy.one_round_late();
  for (int64_t p = 0; p < policy.fragments && policy.local_steps(); ++p) {
    if (!late && ends_apart(policy, p)) borders.push_back({BorderPart::kLast, p});
    if (policy.delay == 0) {
      borders.push_back({BorderPart::kAtOnce, p});
      continue;
    }
    borders.push_back({late ? BorderPart::kRound : BorderPart::kLaunch, p});
    borders.push_back({BorderPart::kLand, p});
    borders.push_back({BorderPart::kLandLast, p});
    borders.push_back({BorderPart::kRelaunch, p});
  }
  if (policy.local_steps()) borders.push_back({BorderPart::kExchange, 0});
  return borders;
}

std::vector<program::Rule> border_rules(const Policy& policy, const std::string& step,
                                        const std::function<bool(const Border&)>& in_step) {
  std::vector<program::Rule> rules;
  if (!policy.local_steps()) return rules;
  const auto add = [&](const std::string& purpose, BorderPart part, int64_t fragment,
                       const program::Turns& turns) {
    rules.push_back(rule_of(purpose, {part, fragment}, turns));
    rules.back().holds_step = in_step({part, fragment});
  };
  const int64_t period = policy.period, delay = policy.delay;
  const bool late = policy.one_round_late();
  const program::Turns last{policy.steps - 1, kNeverAgain}, end{policy.steps, kNeverAgain};
  for (int64_t p = 0; p < policy.fragments && delay > 0 && !late; ++p)
    add(step, BorderPart::kLand, p, {policy.first_border(p) + delay - 1, period});
  for (int64_t p = 0; p < policy.fragments; ++p) {
    const int64_t first = policy.first_border(p);
    const bool apart = ends_apart(policy, p);
    const BorderPart part = delay == 0 ? BorderPart::kAtOnce
                            : late     ? BorderPart::kRound
                                       : BorderPart::kLaunch;
    add(step, part, p, {first - 1, period});
    if (apart) add(step, late ? BorderPart::kRound : BorderPart::kLast, p, last);
    if (delay == 0) continue;
    add(program::ProgramSet::kStart, BorderPart::kRelaunch, p, {first, period, delay});
    add(program::ProgramSet::kEnd, BorderPart::kLandLast, p, {first, period, delay});
    if (!apart || !late || policy.steps > first) continue;
    add(program::ProgramSet::kStart, BorderPart::kRelaunch, p, end);
    add(program::ProgramSet::kEnd, BorderPart::kLandLast, p, end);
  }
  return rules;
}

void synchronise(Draft& draft, const ModelShape& shape, const Cluster& cluster,
                 const Policy& policy, const Border& border) {
  BorderWriter writer(draft, policy, border);
  writer.declare(shape, cluster, border.fragment);
  writer.write_body();
}

}  // namespace strait::strategy
