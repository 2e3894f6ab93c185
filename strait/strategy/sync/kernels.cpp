#include "strait/strategy/sync/kernels.h"

#include <algorithm>

namespace strait::strategy {

using program::AttributeType;
using program::Bound;
using program::Count;
using program::Kernel;
using program::KernelCost;
using program::Op;
using program::Program;

namespace {

using program::kReads;
using program::kUpdates;
using program::kWrites;

/// Bytes of the optimizer's shard for every access: an update is two.
KernelCost shard_cost(const Program& program, const Op& op, int64_t rank) {
  const int64_t part = program.groups[op.group].part(rank);
  const program::Operand& any = op.writes.front();
  const auto shard =
      static_cast<double>(op.partition.count(part) * dtype_bytes(program.arrays[any.array].dtype));
  double accesses =
      static_cast<double>(std::ranges::count_if(op.reads, [&](const program::Operand& operand) {
        return program.arrays[operand.array].tier == program::Tier::kDevice;
      }));
  for (const program::Operand& operand : op.writes)
    accesses += operand.access == program::Access::kUpdate ? 2 : 1;
  KernelCost cost;
  cost.bytes = shard * accesses;
  return cost;
}

}  // namespace

const Kernel kOuterGradient = {
    "outer_gradient",
    Bound::kMemory,
    {{"outer", kReads}, {"local", kReads, Count::kOne, false}, {"difference", kWrites}},
    {},
    shard_cost};

const Kernel kKeepDifference = {
    "keep_difference", Bound::kMemory, {{"from", kReads}, {"to", kWrites}}, {}, shard_cost};

const Kernel kOuterStep = {"outer_step",
                           Bound::kMemory,
                           {{"sum", kReads},
                            {"sent", kReads, Count::kOptional},
                            {"fresh", kReads, Count::kOptional},
                            {"velocity", kUpdates},
                            {"outer", kUpdates},
                            {"local", kUpdates, Count::kOne, false},
                            {"border", kReads, Count::kOptional}},
                           {{"replicas", AttributeType::kInteger},
                            {"nesterov", AttributeType::kInteger},
                            {"learning_rate", AttributeType::kNumber},
                            {"momentum", AttributeType::kNumber},
                            {"clip", AttributeType::kNumber},
                            {"penalty", AttributeType::kNumber},
                            {"gap", AttributeType::kNumber},
                            {"mixing", AttributeType::kNumber},
                            {"follows_rate", AttributeType::kInteger},
                            {"restarts", AttributeType::kInteger}},
                           shard_cost};

const Kernel kOuterMean = {
    "outer_mean",
    Bound::kMemory,
    {{"outer", kUpdates}, {"velocity", kUpdates}, {"local", kWrites, Count::kOne, false}},
    {{"replicas", AttributeType::kInteger}},
    shard_cost};

const Kernel kExchangeWeights = {"exchange_weights",
                                 Bound::kMemory,
                                 {{"outer", kUpdates}, {"local", kUpdates, Count::kOne, false}},
                                 {},
                                 shard_cost};

const Kernel kEncodeDifference = {"encode_difference",
                                  Bound::kCodec,
                                  {{"difference", kReads}, {"pieces", kWrites, Count::kOne, false}},
                                  {}};

const Kernel kSumDifferences = {
    "sum_differences", Bound::kCodec, {{"pieces", kReads}, {"sum", kWrites}}, {}};

const Kernel kReportStep = {"report_step",
                            Bound::kNothing,
                            {{"agreed", kReads, Count::kOptional},
                             {"border", kReads, Count::kOptional},
                             {"scalars", kWrites}},
                            {}};

const Kernel kTakeReports = {
    "take_reports", Bound::kNothing, {{"scalars", kReads}, {"border", kWrites}}, {}};

}  // namespace strait::strategy
