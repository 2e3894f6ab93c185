// Executors of the outer optimizer and of what replicas tell each other.
#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "strait/codec/borders.h"
#include "strait/execute/environment.h"
#include "strait/layout/layout.h"
#include "strait/optim/outer.h"
#include "strait/optim/schedule.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/strategy/sync/kernels.h"

namespace strait::execute {
namespace {

using program::attribute;
using runtime::Bound;
using runtime::Execute;
using runtime::Instance;

/// The rank's part of the op's partition inside an operand that holds it or more; nothing where
/// there is no operand.
codec::Values part_of(const Instance& instance, const Bound* operand) {
  if (operand == nullptr) return {};
  const program::ValueArray& array = instance.array(*operand);
  const Range range = updated_range(*instance.program, *instance.op, instance.rank);
  const int64_t first = program::value_begin(*instance.program, array, instance.rank);
  return {static_cast<char*>(operand->data) + (range.begin - first) * dtype_bytes(array.dtype),
          array.dtype, range.size()};
}

codec::ConstValues read_part(const Instance& instance, int slot) {
  const codec::Values part = part_of(instance, instance.find_read(slot));
  return {part.data, part.dtype, part.elements};
}
codec::Values write_part(const Instance& instance, int slot) {
  return part_of(instance, instance.find_write(slot));
}

void outer_gradient(device::Arithmetic& arithmetic, const Instance& instance) {
  arithmetic.subtract(read_part(instance, strategy::kDifferenceOuter),
                      read_part(instance, strategy::kDifferenceLocal),
                      write_part(instance, strategy::kDifference));
}

/// As numbers of no codec.
void copy(device::Arithmetic& arithmetic, const codec::ConstValues& from, const codec::Values& to) {
  const std::span<const uint8_t> bytes(
      static_cast<const uint8_t*>(from.data),
      static_cast<size_t>(from.elements * dtype_bytes(from.dtype)));
  arithmetic.decode({}, bytes, to, false);
}

void keep_difference(device::Arithmetic& arithmetic, const Instance& instance) {
  copy(arithmetic, read_part(instance, strategy::kKeptFrom), write_part(instance, strategy::kKept));
}

/// Of the step; one that follows the inner learning rate has fallen as far as the rate has.
double penalty_of(const program::Op& op, const StepRules& rules, int64_t step) {
  const double full = attribute<double>(op, strategy::kOuterPenalty);
  if (attribute<int64_t>(op, strategy::kOuterFollowsRate) == 0) return full;
  const double rate = optim::learning_rate(rules.optimizer, step, rules.total_steps);
  return std::max(1.0, full * rate / rules.optimizer.learning_rate);
}

optim::OuterUpdate update_of(const program::Op& op, const StepRules& rules, int64_t step) {
  const auto number = [&](int at) { return attribute<double>(op, at); };
  return {attribute<int64_t>(op, strategy::kOuterReplicas),
          attribute<int64_t>(op, strategy::kOuterNesterov) != 0,
          number(strategy::kOuterLearningRate),
          number(strategy::kOuterMomentum),
          number(strategy::kOuterClip),
          penalty_of(op, rules, step),
          number(strategy::kOuterGap),
          number(strategy::kOuterMixing)};
}

/// Whether there is a result to take up, of this replica or of others.
bool has_result(const Instance& instance) {
  const Bound* border = instance.find_read(strategy::kOuterBorder);
  return border == nullptr || instance.find_read(strategy::kOuterFresh) != nullptr ||
         static_cast<const double*>(border->data)[strategy::kBorderSenders] > 0;
}

/// A momentum that stays, and no step.
optim::OuterUpdate no_update(const program::Op& op) {
  optim::OuterUpdate update;
  update.learning_rate = 0;
  update.momentum = 1;
  update.mixing = attribute<int64_t>(op, strategy::kOuterRestarts) != 0 ? 0 : 1;
  return update;
}

void outer_step(device::Arithmetic& arithmetic, const StepRules& rules, const Instance& instance) {
  arithmetic.outer_step(
      {has_result(instance) ? update_of(*instance.op, rules, instance.step)
                            : no_update(*instance.op),
       read_part(instance, strategy::kOuterSum), read_part(instance, strategy::kOuterSent),
       read_part(instance, strategy::kOuterFresh), write_part(instance, strategy::kOuterVelocity),
       write_part(instance, strategy::kOuterWeights), write_part(instance, strategy::kOuterLocal)});
}

void outer_mean(device::Arithmetic& arithmetic, const Instance& instance) {
  const double share =
      1 / static_cast<double>(attribute<int64_t>(*instance.op, strategy::kMeanReplicas));
  const codec::Values outer = write_part(instance, strategy::kMeanOuter);
  arithmetic.scale(share, outer);
  arithmetic.scale(share, write_part(instance, strategy::kMeanVelocity));
  copy(arithmetic, {outer.data, outer.dtype, outer.elements},
       write_part(instance, strategy::kMeanLocal));
}

void exchange_weights(device::Arithmetic& arithmetic, const Instance& instance) {
  arithmetic.exchange(write_part(instance, strategy::kExchangedOuter),
                      write_part(instance, strategy::kExchangedLocal));
}

/// Elements of the difference, or of the sum, as numbers.
codec::Values numbers(const Instance& instance, const Bound& operand) {
  const Dtype dtype = instance.array(operand).dtype;
  return {operand.data, dtype, operand.bytes / dtype_bytes(dtype)};
}

/// Calls use(Stretch) for the stretches of what an operand holds of a unit.
template <class Use>
void for_each_stretch(const codec::BorderedCodec& codec, const Instance& instance,
                      const Bound& operand, const Use& use) {
  const codec::Values all = numbers(instance, operand);
  const int64_t first =
      program::value_begin(*instance.program, instance.array(operand), instance.rank);
  codec.for_each_stretch(all, first, first, first + all.elements, use);
}

/// The piece of the replica at a position.
uint8_t* piece_at(const Instance& instance, const Bound& pieces, int64_t position) {
  return static_cast<uint8_t*>(pieces.data) + position * instance.op->piece_bytes;
}

void encode_difference(const codec::BorderedCodec& codec, device::Arithmetic& arithmetic,
                       const Instance& instance) {
  const Bound& pieces = *instance.find_write(strategy::kDifferencePieces);
  const int64_t position = instance.program->groups[instance.op->group].position(instance.rank);
  for_each_stretch(codec, instance, *instance.find_read(strategy::kEncodedDifference),
                   [&](const codec::Stretch& at) {
                     const auto& [data, dtype, elements] = at.numbers;
                     arithmetic.encode({codec.codec, {data, dtype, elements}},
                                       at.in(piece_at(instance, pieces, position)), nullptr);
                   });
}

void sum_differences(const codec::BorderedCodec& codec, device::Arithmetic& arithmetic,
                     const Instance& instance) {
  const Bound& held = *instance.find_read(strategy::kSummedPieces);
  const int64_t replicas = instance.program->groups[instance.op->group].size;
  for_each_stretch(codec, instance, *instance.find_write(strategy::kSumOfDifferences),
                   [&](const codec::Stretch& at) {
                     std::vector<std::span<const uint8_t>> pieces;
                     for (int64_t replica = 0; replica < replicas; ++replica)
                       pieces.push_back(at.in(piece_at(instance, held, replica)));
                     arithmetic.decode_sum({codec.codec, pieces, at.numbers.elements}, at.numbers);
                   });
}

void report_step(device::Arithmetic& arithmetic, const Instance& instance) {
  std::array<double, strategy::kNumBorderValues> report{};
  if (const Bound* border = instance.find_read(strategy::kReportedBorder)) {
    report[strategy::kBorderSenders] =
        static_cast<const double*>(border->data)[strategy::kBorderSenders];
  } else {
    std::array<double, strategy::kNumAgreed> agreed{};
    arithmetic.get(instance.read(strategy::kReportedAgreed), agreed.data(), sizeof(agreed));
    report[strategy::kBorderSenders] = 1;
    report[strategy::kBorderStopRequests] = agreed[strategy::kStopRequests];
  }
  arithmetic.put(report.data(), instance.write(strategy::kReportedScalars), sizeof(report));
}

void take_reports(device::Arithmetic& arithmetic, const Instance& instance) {
  arithmetic.get(instance.read(strategy::kTakenScalars), instance.write(strategy::kTakenBorder),
                 strategy::kNumBorderValues * static_cast<int64_t>(sizeof(double)));
}

}  // namespace

void add_outer_executors(runtime::Executors& executors, device::Arithmetic& arithmetic,
                         const StepRules& rules) {
  const auto add = [&](const program::Kernel& kernel, auto* execute) {
    executors.add(kernel, Execute([&arithmetic, execute](const Instance& instance) {
                    execute(arithmetic, instance);
                  }));
  };
  add(strategy::kOuterGradient, &outer_gradient);
  add(strategy::kKeepDifference, &keep_difference);
  executors.add(strategy::kOuterStep, Execute([&arithmetic, rules](const Instance& instance) {
                  outer_step(arithmetic, rules, instance);
                }));
  add(strategy::kOuterMean, &outer_mean);
  add(strategy::kExchangeWeights, &exchange_weights);
  add(strategy::kReportStep, &report_step);
  add(strategy::kTakeReports, &take_reports);
  const auto add_coding = [&](const program::Kernel& kernel, auto* execute) {
    executors.add(kernel, [&arithmetic, execute](const program::Program&, const program::Op& op) {
      return Execute([&arithmetic, execute, codec = codec::parse_bordered(op.codec)](
                         const Instance& instance) { execute(codec, arithmetic, instance); });
    });
  };
  add_coding(strategy::kEncodeDifference, &encode_difference);
  add_coding(strategy::kSumDifferences, &sum_differences);
}

}  // namespace strait::execute
