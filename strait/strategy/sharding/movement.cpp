#include "strait/strategy/sharding/movement.h"

#include <algorithm>

#include "strait/strategy/sharding/kernels.h"

namespace strait::strategy {

using program::Access;
using program::Node;
using program::Op;
using program::Operand;
using program::OpKind;

namespace {

/// Marks an op as one on pieces of a format: for the ledger and the executor.
void moves_pieces(Op& op, const PieceFormat& format) {
  op.codec = format.codec_text();
  op.piece_bytes = format.piece_bytes;
  op.metadata_bytes = format.metadata_bytes;
}

Operand made(const Operand& operand, int slot = 0) {
  return program::as(operand, Access::kWrite, slot);
}

/// Made, or added to what is there.
Operand summed(const Operand& operand, bool accumulate, int slot = 0) {
  return program::as(operand, accumulate ? Access::kAdd : Access::kWrite, slot);
}

/// An encode into pieces, or a decode into numbers.
void set_operands(Op& coding, const Operand& from, const Operand& to) {
  coding.reads = {program::as(from, Access::kRead, 0)};
  coding.writes = {made(to, 1)};
}

}  // namespace

Movement::Movement(draft::Draft& draft, const UnitValues& values, const Placement& placement,
                   const Cluster& cluster, const StepScalars& scalars)
    : program_(draft.program), values_(values), placement_(placement), scalars_(scalars) {
  const auto lane = [&](int group) { return draft::add_lane(draft.program, cluster, group); };
  for (int64_t hop = 0; hop < values_.num_hops(); ++hop)
    gather_streams_.push_back(lane(values_.hop_group(hop)));
  for (int64_t hop = 0; hop < values_.num_hops(); ++hop)
    reduce_streams_.push_back(lane(values_.hop_group(hop)));
  if (values_.across_group() >= 0) across_stream_ = lane(values_.across_group());
  if (values_.secondary_group() >= 0) secondary_stream_ = lane(values_.secondary_group());
  agreement_stream_ = reduce_streams_.empty() ? across_stream_ : reduce_streams_.back();
  // Ranks that no placement joins agree on a lane of their own.
  if (program_.groups[static_cast<size_t>(draft.agreement)].size != placement.ranks)
    agreement_stream_ = lane(draft.agreement);
}

Operand Movement::weights(int64_t unit) const {
  return values_.operand(copies() ? UnitValue::kGathered : UnitValue::kShard, unit);
}

Operand Movement::gradient(int64_t unit) const {
  return values_.operand(gradient_is_fresh() ? UnitValue::kFull : UnitValue::kGradient, unit);
}

Op Movement::transfer(OpKind kind, int stream, int group) const {
  Op op;
  op.kind = kind;
  op.stream = stream;
  op.group = group;
  return op;
}

void Movement::free_value(UnitValue value, int64_t unit, int64_t nth,
                          std::vector<Node>& nodes) const {
  Op op;
  op.kind = OpKind::kFree;
  op.writes = {made(values_.operand(value, unit, nth))};
  nodes.push_back(std::move(op));
}

Op Movement::coding(const program::Kernel& kernel, const PieceFormat& format, Pieces pieces) const {
  Op op;
  op.kind = OpKind::kKernel;
  op.kernel = &kernel;
  op.group = format.group;
  op.partition = format.partition;
  op.attributes = {static_cast<int64_t>(pieces)};
  moves_pieces(op, format);
  return op;
}

Op Movement::gather_hop(int64_t unit, int64_t hop, const PieceFormat* pieces) const {
  Op op = transfer(OpKind::kAllGather, gather_streams_[static_cast<size_t>(hop)],
                   values_.hop_group(hop));
  op.partition = values_.partition(unit, hop + 1);
  if (pieces == nullptr) return op;
  op.codec = pieces->codec_text();
  if (values_.is_numbers(pieces->codec)) return op;
  const int64_t parts = program_.groups[pieces->group].parts();
  op.partition = pieces->bytes(parts);
  op.partition.grain *= parts / placement_.span_of(hop + 1);
  moves_pieces(op, *pieces);
  return op;
}

void Movement::gather(int64_t unit, GatherSource source, std::vector<Operand> waits,
                      std::vector<Node>& nodes) const {
  if (placement_.weights == 1) return;
  if (source == GatherSource::kCopy) {
    const bool pieces = values_.has(UnitValue::kSecondaryPieces);
    Op op = transfer(OpKind::kAllGather, secondary_stream_, values_.secondary_group());
    const PieceFormat format = values_.secondary_pieces(unit);
    op.partition = pieces ? format.bytes(placement_.secondary) : format.partition;
    op.reads = {values_.operand(UnitValue::kSecondary, unit)};
    op.writes = {
        made(values_.operand(pieces ? UnitValue::kSecondaryPieces : UnitValue::kGathered, unit))};
    op.waits = std::move(waits);
    if (pieces) moves_pieces(op, format);
    nodes.push_back(std::move(op));
    return;
  }
  const PieceFormat format = values_.weight_pieces(unit);
  const UnitValue target =
      values_.has(UnitValue::kPieces) ? UnitValue::kPieces : UnitValue::kGathered;
  const bool encodes = coded(format.codec) && !placement_.has_master();
  if (encodes) {
    Op op = coding(kEncode, format, Pieces::kOwn);
    set_operands(op, values_.operand(UnitValue::kShard, unit), values_.operand(target, unit));
    nodes.push_back(std::move(op));
  }
  const int64_t hops = placement_.hops_in(placement_.weights);
  for (int64_t hop = hops - 1; hop >= 0; --hop) {
    Op op = gather_hop(unit, hop, coded(format.codec) ? &format : nullptr);
    const bool from_shard = hop == hops - 1 && !encodes;
    op.reads = {values_.operand(from_shard ? UnitValue::kShard : target, unit)};
    op.writes = {made(values_.operand(target, unit))};
    if (hop == hops - 1) op.waits = std::move(waits);
    nodes.push_back(std::move(op));
  }
}

void Movement::ready(int64_t unit, GatherSource source, std::vector<Node>& nodes) const {
  const bool copy = source == GatherSource::kCopy;
  const Operand whole =
      values_.has(UnitValue::kGathered) ? values_.operand(UnitValue::kGathered, unit) : Operand{};
  const auto decode = [&](UnitValue from, const PieceFormat& format) {
    Op op = coding(kDecode, format, Pieces::kAll);
    set_operands(op, values_.operand(from, unit), whole);
    nodes.push_back(std::move(op));
    if (from != UnitValue::kShard) free_value(from, unit, 0, nodes);
  };
  if (copy && values_.has(UnitValue::kSecondaryPieces))
    decode(UnitValue::kSecondaryPieces, values_.secondary_pieces(unit));
  else if (!copy && values_.has(UnitValue::kPieces))
    decode(UnitValue::kPieces, values_.weight_pieces(unit));
  else if (placement_.weights == 1 && values_.keeps_pieces())
    decode(UnitValue::kShard, values_.weight_pieces(unit));
  if (source != GatherSource::kShardsAndCopy) return;
  Op op = coding(kEncode, values_.secondary_pieces(unit), Pieces::kOwn);
  set_operands(op, values_.operand(UnitValue::kGathered, unit),
               values_.operand(UnitValue::kSecondary, unit));
  nodes.push_back(std::move(op));
}

void Movement::release(int64_t unit, std::vector<Node>& nodes) const {
  if (copies()) free_value(UnitValue::kGathered, unit, 0, nodes);
}

void Movement::feed_back(Op& encode, const PieceFormat& format, int64_t unit, int64_t nth) const {
  if (!format.codec.error_feedback) return;
  encode.writes.push_back(program::as(values_.operand(UnitValue::kResidual, unit, nth),
                                      Access::kUpdate, kEncodeResidual));
}

/// An encode of a gradient, which counts what is not finite.
Op Movement::encode_gradient(const Reduction& r, const Operand& pieces, Pieces which,
                             int64_t residual) const {
  const PieceFormat format = values_.gradient_pieces(r.unit, r.hop);
  Op encode = coding(kEncode, format, which);
  set_operands(encode, r.source, pieces);
  encode.writes.push_back(program::as(scalars_.agreed, Access::kAdd, kEncodeAgreed));
  if (codec::draws(format.codec))
    encode.reads.push_back(program::as(scalars_.step, Access::kRead, kEncodeStep));
  feed_back(encode, format, r.unit, residual);
  return encode;
}

/// Stages without operations between a transfer of the outermost hop and its decoding. Its link is
/// the slowest, and hosts that are not quite in step are not waited for.
constexpr size_t kStagesOnTheWay = 3;

bool Movement::may_stay_on_the_way(const Reduction& r) const {
  if (r.hop != values_.num_hops() - 1) return false;
  // By the codec alone: padding, of which small units have more, must not change the program.
  constexpr int64_t kElements = int64_t{1} << 20;
  const int64_t gradient = kElements * dtype_bytes(Dtype::kFloat32);
  const codec::CodecSpec& spec = placement_.codecs.gradients[static_cast<size_t>(r.hop)];
  const int64_t pieces = codec::encoded_bytes(spec, kElements) / placement_.span_of(r.hop);
  return static_cast<int64_t>(kStagesOnTheWay) * pieces <= gradient / 2;
}

void Movement::encode_sent(const Reduction& r, Stages& stages) const {
  const bool in_flight = std::any_of(
      stages.back().begin(), stages.back().end(),
      [](const Node& node) { return program::is_communication(std::get<Op>(node).kind); });
  if (in_flight) stages.emplace_back();
  stages.back().push_back(
      encode_gradient(r, values_.operand(UnitValue::kSent, r.unit, r.hop), Pieces::kGroup, r.hop));
  if (r.frees_full) free_value(UnitValue::kFull, r.unit, 0, stages.back());
}

void Movement::decode_into_target(const program::Kernel& kernel, UnitValue come, const Reduction& r,
                                  Stages& stages) const {
  stages.resize(stages.size() + 1 + (may_stay_on_the_way(r) ? kStagesOnTheWay : 0));
  Op op = coding(kernel, values_.gradient_pieces(r.unit, r.hop), Pieces::kGroup);
  op.reads = {program::as(values_.operand(come, r.unit, r.hop), Access::kRead, kDecodePieces)};
  op.writes = {summed(r.target, r.accumulate, kDecodeNumbers)};
  stages.back().push_back(std::move(op));
  free_value(come, r.unit, r.hop, stages.back());
}

void Movement::reduce_hop(const Reduction& r, Stages& stages) const {
  const bool across = r.hop == values_.num_hops();
  const int group = across ? values_.across_group() : values_.hop_group(r.hop);
  const int stream = across ? across_stream_ : reduce_streams_[static_cast<size_t>(r.hop)];
  if (!coded(placement_.codecs.gradients[static_cast<size_t>(r.hop)])) {
    Op op = transfer(OpKind::kReduceScatter, stream, group);
    op.partition = values_.partition(r.unit, r.hop + 1);
    op.reads = {r.source};
    op.writes = {summed(r.target, r.accumulate)};
    stages.back().push_back(std::move(op));
    if (r.frees_full) free_value(UnitValue::kFull, r.unit, 0, stages.back());
    return;
  }
  encode_sent(r, stages);
  const PieceFormat format = values_.gradient_pieces(r.unit, r.hop);
  const Operand sent = values_.operand(UnitValue::kSent, r.unit, r.hop);
  const Operand received = values_.operand(UnitValue::kReceived, r.unit, r.hop);
  Op exchange = transfer(OpKind::kAllToAll, stream, group);
  exchange.partition = format.bytes(program_.groups[format.group].size);
  moves_pieces(exchange, format);
  exchange.reads = {sent};
  exchange.writes = {made(received)};
  stages.back().push_back(std::move(exchange));
  free_value(UnitValue::kSent, r.unit, r.hop, stages.back());
  decode_into_target(kDecodeSum, UnitValue::kReceived, r, stages);
}

Op Movement::low_rank_op(const program::Kernel& kernel, int64_t unit) const {
  Op op;
  op.kind = OpKind::kKernel;
  op.kernel = &kernel;
  op.group = values_.across_group();
  op.attributes = {print_low_rank(values_.low_rank_of(unit))};
  return op;
}

Op Movement::sum_of_factors(const Operand& factors) const {
  Op op = transfer(OpKind::kAllReduce, across_stream_, values_.across_group());
  op.reads = {factors};
  op.writes = {made(factors)};
  return op;
}

/// Two all-reduces, of left factors and then of right ones, each awaited by what follows from it.
void Movement::sum_low_rank(const Reduction& r, Stages& stages) const {
  const Operand left = values_.operand(UnitValue::kLeft, r.unit),
                right = values_.operand(UnitValue::kRight, r.unit),
                kept = values_.operand(UnitValue::kFactors, r.unit);
  const bool feeds_back = placement_.codecs.gradients.back().error_feedback;
  const auto residual = [&](Access access, int slot) {
    return program::as(values_.operand(UnitValue::kResidual, r.unit, r.hop), access, slot);
  };
  Op first = low_rank_op(kProjectRight, r.unit);
  if (feeds_back) first.reads = {residual(Access::kRead, kProjectResidual)};
  first.writes = {program::as(r.source, Access::kUpdate, kProjectedGradient),
                  program::as(kept, Access::kUpdate, kProjectFactors), made(left, kProjectedLeft),
                  program::as(scalars_.agreed, Access::kAdd, kProjectAgreed)};
  stages.back().push_back(std::move(first));
  stages.back().push_back(sum_of_factors(left));
  Op second = low_rank_op(kProjectLeft, r.unit);
  second.reads = {program::as(r.source, Access::kRead, kLeftGradient)};
  second.writes = {program::as(left, Access::kUpdate, kLeftFactors), made(right, kLeftRight)};
  stages.emplace_back().push_back(std::move(second));
  stages.back().push_back(sum_of_factors(right));
  Op third = low_rank_op(kExpandFactors, r.unit);
  third.reads = {program::as(left, Access::kRead, kExpandLeft),
                 program::as(right, Access::kRead, kExpandRight)};
  third.writes = {program::as(r.source, Access::kUpdate, kExpandedGradient)};
  if (feeds_back) third.writes.push_back(residual(Access::kUpdate, kExpandResidual));
  third.writes.push_back(made(kept, kExpandKept));
  stages.emplace_back().push_back(std::move(third));
  free_value(UnitValue::kLeft, r.unit, 0, stages.back());
  free_value(UnitValue::kRight, r.unit, 0, stages.back());
}

/// An all-reduce, where need be of encoded numbers; of pieces, which cannot be summed on their way,
/// the reduction of one more hop, whose result is gathered again.
void Movement::sum_across(const Reduction& r, Stages& stages) const {
  const codec::CodecSpec& codec = placement_.codecs.gradients.back();
  if (codec::is_low_rank(codec)) return sum_low_rank(r, stages);
  Op all_reduce = transfer(OpKind::kAllReduce, across_stream_, values_.across_group());
  if (!coded(codec)) {
    all_reduce.reads = {r.source};
    all_reduce.writes = {summed(r.target, r.accumulate)};
    stages.back().push_back(std::move(all_reduce));
    return;
  }
  const Operand pieces = values_.operand(UnitValue::kSent, r.unit, r.hop);
  if (values_.sums_numbers(codec)) {
    encode_sent(r, stages);
    all_reduce.codec = codec::print_codec(codec);
    all_reduce.reads = {pieces};
    all_reduce.writes = {made(pieces)};
    stages.back().push_back(std::move(all_reduce));
    return decode_into_target(kDecode, UnitValue::kSent, r, stages);
  }
  Reduction in_place = r;
  in_place.target = r.source;
  in_place.accumulate = false;
  reduce_hop(in_place, stages);
  const PieceFormat format = values_.gradient_pieces(r.unit, r.hop);
  stages.back().push_back(encode_gradient(r, pieces, Pieces::kMember, r.hop + 1));
  Op gather = transfer(OpKind::kAllGather, across_stream_, values_.across_group());
  gather.partition = format.bytes(placement_.replicas());
  moves_pieces(gather, format);
  gather.reads = {pieces};
  gather.writes = {made(pieces)};
  stages.back().push_back(std::move(gather));
  decode_into_target(kDecode, UnitValue::kSent, r, stages);
}

Stages Movement::reduce(int64_t unit, bool accumulate, ReducePhase phase) const {
  Stages stages(1);
  const auto value = [&](UnitValue which) { return values_.operand(which, unit); };
  const bool last = phase == ReducePhase::kLast;
  const bool every = placement_.across_every_micro_step;
  const int64_t inner_hops = placement_.hops_in(placement_.gradients);
  for (int64_t hop = 0; hop < inner_hops; ++hop) {
    const bool final_hop = hop == inner_hops - 1;
    const UnitValue target = !final_hop ? UnitValue::kFull
                             : every    ? UnitValue::kReduced
                                        : UnitValue::kGradient;
    reduce_hop({unit, hop, value(UnitValue::kFull), value(target),
                final_hop && !every && accumulate, final_hop},
               stages);
  }
  const int64_t across_hop = values_.num_hops();
  const Operand gradient = value(UnitValue::kGradient);
  if (every) {
    sum_across({unit, across_hop, value(UnitValue::kReduced), gradient, accumulate, false}, stages);
    free_value(UnitValue::kReduced, unit, 0, stages.back());
  }
  if (!last) return stages;
  for (int64_t hop = inner_hops; hop < values_.num_hops(); ++hop)
    reduce_hop({unit, hop, gradient, gradient, false, false}, stages);
  if (!every && placement_.replicas() > 1)
    sum_across({unit, across_hop, gradient, gradient, false, false}, stages);
  return stages;
}

std::vector<Operand> Movement::reduction_buffers(int64_t unit) const {
  std::vector<Operand> buffers;
  if (placement_.gradients > 1) buffers.push_back(values_.operand(UnitValue::kFull, unit));
  if (placement_.across_every_micro_step)
    buffers.push_back(values_.operand(UnitValue::kReduced, unit));
  return buffers;
}

void Movement::publish(int64_t unit, std::vector<Node>& nodes) const {
  const bool pieces = placement_.has_master();
  const PieceFormat format = values_.weight_pieces(unit);
  const Operand shard = values_.operand(UnitValue::kShard, unit);
  if (pieces) {
    Op op = coding(kEncode, format, Pieces::kOwn);
    set_operands(op, values_.operand(UnitValue::kMaster, unit), shard);
    nodes.push_back(std::move(op));
  }
  const int64_t stop = placement_.hops_in(placement_.weights);
  for (int64_t hop = values_.num_hops() - 1; hop >= stop; --hop) {
    Op op = gather_hop(unit, hop, pieces ? &format : nullptr);
    op.reads = {shard};
    op.writes = {made(shard)};
    nodes.push_back(std::move(op));
  }
}

}  // namespace strait::strategy
