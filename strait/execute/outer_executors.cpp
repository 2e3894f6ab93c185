// Executors of the outer optimizer and of what replicas tell each other.
#include <algorithm>
#include <span>
#include <vector>

#include "strait/codec/codec.h"
#include "strait/execute/environment.h"
#include "strait/layout/layout.h"
#include "strait/optim/outer.h"
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
template <class T>
std::span<T> part_of(const Instance& instance, const Bound* operand) {
  if (operand == nullptr) return {};
  const Range range = updated_range(*instance.program, *instance.op, instance.rank);
  const int64_t first =
      program::value_begin(*instance.program, instance.array(*operand), instance.rank);
  return {static_cast<T*>(operand->data) + (range.begin - first),
          static_cast<size_t>(range.size())};
}

template <class T>
std::span<const T> read_part(const Instance& instance, int slot) {
  return part_of<T>(instance, instance.find_read(slot));
}
template <class T>
std::span<T> write_part(const Instance& instance, int slot) {
  return part_of<T>(instance, instance.find_write(slot));
}

/// Calls work.operator()<float or double>().
template <class Work>
void in_type_of(const Instance& instance, const Work& work) {
  if (instance.array(instance.writes.front()).dtype == Dtype::kFloat64)
    work.template operator()<double>();
  else
    work.template operator()<float>();
}

void outer_gradient(const Instance& instance, int threads) {
  in_type_of(instance, [&]<class T>() {
    optim::outer_gradient<T>(read_part<T>(instance, strategy::kDifferenceOuter),
                             read_part<T>(instance, strategy::kDifferenceLocal),
                             write_part<T>(instance, strategy::kDifference), threads);
  });
}

void keep_difference(const Instance& instance) {
  in_type_of(instance, [&]<class T>() {
    std::ranges::copy(read_part<T>(instance, strategy::kKeptFrom),
                      write_part<T>(instance, strategy::kKept).begin());
  });
}

optim::OuterUpdate update_of(const program::Op& op) {
  const auto number = [&](int at) { return attribute<double>(op, at); };
  return {attribute<int64_t>(op, strategy::kOuterReplicas),
          attribute<int64_t>(op, strategy::kOuterNesterov) != 0,
          number(strategy::kOuterLearningRate),
          number(strategy::kOuterMomentum),
          number(strategy::kOuterClip),
          number(strategy::kOuterPenalty),
          number(strategy::kOuterMixing)};
}

void outer_step(const Instance& instance, int threads) {
  in_type_of(instance, [&]<class T>() {
    const optim::OuterState<T> state{read_part<T>(instance, strategy::kOuterSum),
                                     read_part<T>(instance, strategy::kOuterSent),
                                     read_part<T>(instance, strategy::kOuterFresh),
                                     write_part<T>(instance, strategy::kOuterVelocity),
                                     write_part<T>(instance, strategy::kOuterWeights),
                                     write_part<T>(instance, strategy::kOuterLocal)};
    optim::outer_step(state, update_of(*instance.op), threads);
  });
}

void exchange_weights(const Instance& instance) {
  in_type_of(instance, [&]<class T>() {
    std::ranges::swap_ranges(write_part<T>(instance, strategy::kExchangedOuter),
                             write_part<T>(instance, strategy::kExchangedLocal));
  });
}

/// Elements of the difference, or of the sum, as numbers.
codec::Values numbers(const Instance& instance, const Bound& operand) {
  const Dtype dtype = instance.array(operand).dtype;
  return {operand.data, dtype, operand.bytes / dtype_bytes(dtype)};
}

/// The piece of the replica at a position.
std::span<uint8_t> piece_at(const Instance& instance, const Bound& pieces, int64_t position,
                            int64_t bytes) {
  return {static_cast<uint8_t*>(pieces.data) + position * instance.op->piece_bytes,
          static_cast<size_t>(bytes)};
}

void encode_difference(const codec::CodecSpec& codec, device::Arithmetic& arithmetic,
                       const Instance& instance) {
  const codec::Values from = numbers(instance, *instance.find_read(strategy::kEncodedDifference));
  if (from.elements == 0) return;
  const program::Group& group = instance.program->groups[instance.op->group];
  const std::span<uint8_t> to =
      piece_at(instance, *instance.find_write(strategy::kDifferencePieces),
               group.position(instance.rank), codec::encoded_bytes(codec, from.elements));
  arithmetic.encode({codec, {from.data, from.dtype, from.elements}}, to, nullptr);
}

void sum_differences(const codec::CodecSpec& codec, device::Arithmetic& arithmetic,
                     const Instance& instance) {
  const codec::Values to = numbers(instance, *instance.find_write(strategy::kSumOfDifferences));
  if (to.elements == 0) return;
  const Bound& held = *instance.find_read(strategy::kSummedPieces);
  const int64_t bytes = codec::encoded_bytes(codec, to.elements);
  std::vector<std::span<const uint8_t>> pieces;
  for (int64_t at = 0; at < instance.program->groups[instance.op->group].size; ++at)
    pieces.push_back(piece_at(instance, held, at, bytes));
  arithmetic.decode_sum({codec, pieces, to.elements}, to);
}

void report_step(const Instance& instance) {
  const auto* agreed = static_cast<const double*>(instance.read(strategy::kReportedAgreed));
  auto* report = static_cast<double*>(instance.write(strategy::kReportedScalars));
  report[strategy::kBorderLossSum] = agreed[strategy::kLossSum];
  report[strategy::kBorderLossCount] = agreed[strategy::kLossCount];
  report[strategy::kBorderStopRequests] = agreed[strategy::kStopRequests];
}

void take_reports(const Instance& instance) {
  const auto* report = static_cast<const double*>(instance.read(strategy::kTakenScalars));
  std::copy_n(report, strategy::kNumBorderValues,
              static_cast<double*>(instance.write(strategy::kTakenBorder)));
}

}  // namespace

void add_outer_executors(runtime::Executors& executors, device::Arithmetic& arithmetic,
                         int threads) {
  executors.add(strategy::kOuterGradient, Execute([threads](const Instance& instance) {
                  outer_gradient(instance, threads);
                }));
  executors.add(strategy::kOuterStep,
                Execute([threads](const Instance& instance) { outer_step(instance, threads); }));
  executors.add(strategy::kKeepDifference, Execute(keep_difference));
  executors.add(strategy::kExchangeWeights, Execute(exchange_weights));
  const auto add_coding = [&](const program::Kernel& kernel, auto* execute) {
    executors.add(kernel, [&arithmetic, execute](const program::Program&, const program::Op& op) {
      return Execute([&arithmetic, execute, codec = codec::parse_codec(op.codec)](
                         const Instance& instance) { execute(codec, arithmetic, instance); });
    });
  };
  add_coding(strategy::kEncodeDifference, &encode_difference);
  add_coding(strategy::kSumDifferences, &sum_differences);
  executors.add(strategy::kReportStep, Execute(report_step));
  executors.add(strategy::kTakeReports, Execute(take_reports));
}

}  // namespace strait::execute
