#include "strait/program/transfer.h"

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/program/classes.h"

namespace strait::program {
namespace {
constexpr int64_t kPartAlignment = 16;
}

namespace {

/// What carries the data: the source, or the destination of a receive.
const Operand& transfer_operand(const Op& op) {
  const std::vector<Operand>& operands = op.reads.empty() ? op.writes : op.reads;
  ensure(!operands.empty(), "a transfer has no operand");
  return operands.front();
}

}  // namespace

const ValueArray& transfer_array(const Program& program, const Op& op) {
  return program.arrays[transfer_operand(op).array];
}

Split transfer_split(const Program& program, const Op& op, int64_t rank) {
  const Group& group = program.groups[op.group];
  switch (op.kind) {
    case OpKind::kBarrier:
      return {};
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
      return {op.partition, group.first_part(rank), group.size};
    case OpKind::kAllToAll:
      return {op.partition, 0, group.size};
    default:
      break;
  }
  const int64_t elements = operand_elements(program, transfer_operand(op), rank);
  if (op.kind != OpKind::kAllReduce) return {{elements, elements}, 0, 1};
  const int64_t exact = (elements + group.size - 1) / group.size;
  return {
      {elements, (exact + kPartAlignment - 1) / kPartAlignment * kPartAlignment}, 0, group.size};
}

namespace {

/// From the beginning of an operand to the vector of the op, or to this rank's part of it.
int64_t offset(const Program& program, const Op& op, const std::vector<Operand>& operands,
               bool own_part, int64_t rank) {
  if (op.kind != OpKind::kAllGather && op.kind != OpKind::kReduceScatter) return 0;
  if (operands.empty()) return 0;
  const int64_t position = program.groups[op.group].position(rank);
  return transfer_split(program, op, rank).begin(own_part ? position : 0) -
         value_begin(program, program.arrays[operands.front().array], rank);
}

}  // namespace

int64_t source_offset(const Program& program, const Op& op, int64_t rank) {
  return offset(program, op, op.reads, op.kind == OpKind::kAllGather, rank);
}

int64_t destination_offset(const Program& program, const Op& op, int64_t rank) {
  return offset(program, op, op.writes, op.kind == OpKind::kReduceScatter, rank);
}

namespace {

bool moves_bytes(const Program& program, const Op& op) {
  return is_communication(op.kind) && op.codec != "none" &&
         transfer_array(program, op).dtype == Dtype::kByte;
}

/// The finest part of one transfer.
int64_t finest_part(const Program& program, const Op& op) {
  int64_t finest = transfer_split(program, op, first_rank(program)).partition.grain;
  for (const auto* operands : {&op.reads, &op.writes})
    for (const Operand& operand : *operands)
      finest = std::min(finest, program.arrays[operand.array].partition.grain);
  return finest;
}

}  // namespace

int64_t piece_length(const Program& program, const Op& op) {
  if (!moves_bytes(program, op)) return 0;
  int64_t finest = finest_part(program, op);
  if (is_message(op.kind)) return finest;  // whole values of several sizes
  for_each_op(program.body, [&](const Op& other) {
    const bool same = other.codec == op.codec && other.partition.elements == op.partition.elements;
    if (same && moves_bytes(program, other)) finest = std::min(finest, finest_part(program, other));
  });
  return finest;
}

std::vector<bool> transferred_arrays(const Program& program) {
  std::vector<bool> transferred(program.arrays.size(), false);
  for_each_op(program.body, [&](const Op& op) {
    if (!is_communication(op.kind)) return;
    for (const auto* operands : {&op.reads, &op.writes})
      for (const Operand& operand : *operands)
        transferred[static_cast<size_t>(operand.array)] = true;
  });
  return transferred;
}

}  // namespace strait::program
