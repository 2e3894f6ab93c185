#include "strait/strategy/finish/kernels.h"

namespace strait::strategy {

using program::AttributeType;
using program::Bound;
using program::Count;
using program::Kernel;
using program::KernelCost;
using program::Op;
using program::Program;

namespace {

/// The gradient is read once; weights and moments are read and written, rounded weights written.
KernelCost update_cost(const Program& program, const Op& op, int64_t rank) {
  const auto bytes_of = [&](const program::Operand& operand) {
    return dtype_bytes(program.arrays[operand.array].dtype);
  };
  int64_t bytes = bytes_of(*program::operand_in(op.reads, kUpdateGradient));
  for (const program::Operand& operand : op.writes)
    bytes += (operand.slot == kUpdateRounded ? 1 : 2) * bytes_of(operand);
  KernelCost cost;
  cost.bytes = static_cast<double>(op.partition.count(program.groups[op.group].part(rank)) * bytes);
  return cost;
}

KernelCost squared_norm_cost(const Program& program, const Op& op, int64_t) {
  KernelCost cost;
  cost.bytes = static_cast<double>(op.partition.elements) / static_cast<double>(program.ranks) *
               static_cast<double>(dtype_bytes(program.arrays[op.reads[0].array].dtype));
  return cost;
}

using program::kAdds;
using program::kReads;
using program::kUpdates;
using program::kWrites;

}  // namespace

const Kernel kBeginStep = {
    "begin_step", Bound::kNothing, {{"progress", kReads}, {"step", kWrites}, {"agreed", kWrites}},
    {},           nullptr,         true};

const Kernel kSquaredNormOf = {
    "squared_norm",
    Bound::kMemory,
    {{"gradient", kReads, Count::kOne, false}, {"agreed", kAdds, Count::kOne, false}},
    {{"unit", AttributeType::kIndex, true}},
    squared_norm_cost};

const Kernel kClipFactor = {"clip_factor",
                            Bound::kNothing,
                            {{"agreed", kReads}, {"step", kReads}, {"results", kWrites}},
                            {}};

const Kernel kUpdate = {"update",
                        Bound::kMemory,
                        {{"gradient", kReads, Count::kOne, false},
                         {"step", kReads, Count::kOne, false},
                         {"results", kReads, Count::kOptional, false},
                         {"weights", kUpdates, Count::kOne, false},
                         {"moments", kUpdates, Count::kAny},
                         {"rounded", kUpdates, Count::kOptional, false}},
                        {{"unit", AttributeType::kIndex, true}},
                        update_cost};

const Kernel kFinishStep = {"finish_step",
                            Bound::kNothing,
                            {{"results", kReads},
                             {"step", kReads},
                             {"progress", kUpdates},
                             {"validated", kReads, Count::kOptional}},
                            {}};

const Kernel kEndFeedback = {"end_feedback",
                             Bound::kNothing,
                             {{"progress", kReads}, {"residual", kUpdates}},
                             {{"updates", program::AttributeType::kInteger}}};

}  // namespace strait::strategy
