#include "strait/strategy/finish/postponed_kernels.h"

namespace strait::strategy {

using program::AttributeType;
using program::Bound;
using program::Count;
using program::Kernel;
using program::KernelCost;
using program::kReads;
using program::kUpdates;
using program::kWrites;
using program::Op;
using program::Program;

namespace {

/// Every copy is read once and written once.
KernelCost keep_cost(const Program& program, const Op& op, int64_t rank) {
  const program::Operand& weights = *program::operand_in(op.reads, kKeepWeights);
  const int64_t shard = op.partition.count(program.groups[op.group].part(rank)) *
                        dtype_bytes(program.arrays[weights.array].dtype);
  KernelCost cost;
  cost.bytes = static_cast<double>(shard) * static_cast<double>(2 * op.writes.size());
  return cost;
}

}  // namespace

const Kernel kGuess = {"guess",
                       Bound::kNothing,
                       {{"agreed", kReads},
                        {"step", kReads},
                        {"progress", kReads},
                        {"validated", kReads},
                        {"results", kWrites},
                        {"pending", kWrites},
                        {"kept", kWrites}},
                       {}};

const Kernel kKeep = {"keep",
                      Bound::kMemory,
                      {{"weights", kReads, Count::kOne, false},
                       {"moments", kReads, Count::kAny},
                       {"copy of weights", kWrites, Count::kOne, false},
                       {"copies of moments", kWrites, Count::kAny}},
                      {{"unit", AttributeType::kIndex, true}},
                      keep_cost};

const Kernel kValidate = {
    "validate",
    Bound::kNothing,
    {{"pending", kReads}, {"kept", kUpdates}, {"validated", kWrites}, {"progress", kUpdates}},
    {}};

const Kernel kAmend = {"amend",
                       Bound::kNothing,
                       {{"gradient", kReads, Count::kOne, false},
                        {"validated", kReads},
                        {"weights", kUpdates, Count::kOne, false},
                        {"moments", kUpdates, Count::kAny},
                        {"copy of weights", kUpdates, Count::kOne, false},
                        {"copies of moments", kUpdates, Count::kAny}},
                       {{"unit", AttributeType::kIndex, true}}};

}  // namespace strait::strategy
