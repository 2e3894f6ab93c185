#include "strait/strategy/sharding/kernels.h"

namespace strait::strategy {

using program::AttributeType;
using program::Bound;
using program::Count;
using program::Kernel;
using program::KernelCost;
using program::Op;
using program::Program;

namespace {

int64_t parts_of(const Program& program, const Op& op) {
  if (op.group < 0) return 1;
  const program::Group& group = program.groups[op.group];
  const Pieces pieces = static_cast<Pieces>(program::attribute<int64_t>(op, kPieces));
  return pieces == Pieces::kAll ? group.parts() : pieces == Pieces::kGroup ? group.size : 1;
}

/// The numbers of the pieces, `sets` times, and the pieces, as they are read and written.
double coded_bytes(const Op& op, int64_t number_parts, int64_t piece_parts) {
  const int64_t number_bytes = op.partition.grain * dtype_bytes(Dtype::kFloat32);
  return static_cast<double>(piece_parts * op.piece_bytes + number_parts * number_bytes);
}

KernelCost encode_cost(const Program& program, const Op& op, int64_t) {
  const int64_t parts = parts_of(program, op);
  KernelCost cost;
  cost.bytes = coded_bytes(op, parts, parts);
  // The residual is read and written, what was encoded is decoded again.
  if (program::operand_in(op.writes, kEncodeResidual) != nullptr)
    cost.bytes += coded_bytes(op, 2 * parts, parts);
  return cost;
}

KernelCost decode_cost(const Program& program, const Op& op, int64_t) {
  const int64_t parts = parts_of(program, op);
  KernelCost cost;
  cost.bytes = coded_bytes(op, op.kernel == &kDecodeSum ? 1 : parts, parts);
  return cost;
}

using program::kAdds;
using program::kReads;
using program::kUpdates;
using program::kWrites;

const std::vector<program::KernelOperand>& decode_operands() {
  static const std::vector<program::KernelOperand> operands = {
      {"pieces", kReads, Count::kOne, false}, {"numbers", kWrites | kAdds, Count::kOne, false}};
  return operands;
}

}  // namespace

const Kernel kEncode = {"encode",
                        Bound::kCodec,
                        {{"numbers", kReads, Count::kOne, false},
                         {"pieces", kWrites, Count::kOne, false},
                         {"agreed", kAdds, Count::kOptional, false},
                         {"residual", kUpdates, Count::kOptional, false},
                         {"step", kReads, Count::kOptional, false}},
                        {{"pieces", AttributeType::kInteger}},
                        encode_cost};

const Kernel kDecode = {
    "decode", Bound::kCodec, decode_operands(), {{"pieces", AttributeType::kInteger}}, decode_cost};

const Kernel kDecodeSum = {"decode_sum",
                           Bound::kCodec,
                           decode_operands(),
                           {{"pieces", AttributeType::kInteger}},
                           decode_cost};

const Kernel kClear = {"clear", Bound::kMemory, {{"gradient", kWrites}}, {}};

}  // namespace strait::strategy
