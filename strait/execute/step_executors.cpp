// Executors of what a step begins and ends with: its scalars, the gradient norm, the optimizer.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "strait/execute/environment.h"
#include "strait/optim/loss_scale.h"
#include "strait/optim/schedule.h"
#include "strait/strategy/finish/kernels.h"
#include "strait/strategy/finish/step_values.h"

namespace strait::execute {
namespace {

using runtime::Bound;
using runtime::Execute;
using runtime::Instance;

double* doubles(void* data) { return static_cast<double*>(data); }

void begin_step(const Environment& environment, const StepRules& rules, const Instance& instance) {
  const double* progress = doubles(instance.read(strategy::kBeginProgress));
  double* step = doubles(instance.write(strategy::kBeginStepValues));
  step[strategy::kLearningRate] =
      optim::learning_rate(rules.optimizer, instance.step, rules.total_steps);
  step[strategy::kLossScale] = rules.scales_loss ? progress[strategy::kNextLossScale] : 1.0;
  step[strategy::kUpdatesBefore] = progress[strategy::kUpdatesDone];
  step[strategy::kFirstSequence] = progress[strategy::kSequencesDone];
  std::array<double, strategy::kNumAgreed> agreed{};
  agreed[strategy::kStopRequests] = rules.stop_requested() ? 1.0 : 0.0;
  environment.arithmetic.put(agreed.data(), instance.write(strategy::kBeginAgreed), sizeof(agreed));
}

/// Elements `range` of the unit inside an operand that holds all of it or one part.
codec::Values at_range(const Instance& instance, const Bound& operand, const Range& range) {
  const program::ValueArray& array = instance.array(operand);
  const int64_t first = program::value_begin(*instance.program, array, instance.rank);
  char* const data = static_cast<char*>(operand.data);
  return {data + (range.begin - first) * dtype_bytes(array.dtype), array.dtype, range.size()};
}

codec::ConstValues constant(const codec::Values& values) {
  return {values.data, values.dtype, values.elements};
}

/// `hops`: that cut the optimizer's shards.
void squared_norm(const Environment& environment, const std::vector<int64_t>& hops,
                  const Instance& instance) {
  double* agreed = doubles(instance.write(strategy::kNormAgreed));
  const Bound& gradient = *instance.find_read(strategy::kNormGradient);
  environment.layout.for_each_counted(
      instance.index(strategy::kUnit), instance.rank, hops, [&](const Range& range) {
        environment.arithmetic.add_squared_norm(constant(at_range(instance, gradient, range)),
                                                agreed + strategy::kSquaredNorm);
      });
}

Execute make_squared_norm(const Environment& environment, const program::Program& program,
                          const program::Op& op) {
  return [&environment, hops = hops_of(program.groups[op.group])](const Instance& instance) {
    squared_norm(environment, hops, instance);
  };
}

void clip_factor(const Environment& environment, const StepRules& rules, const Instance& instance) {
  std::array<double, strategy::kNumAgreed> agreed{};
  environment.arithmetic.get(instance.read(strategy::kClipAgreed), agreed.data(), sizeof(agreed));
  const double loss_scale = doubles(instance.read(strategy::kClipStep))[strategy::kLossScale];
  const double norm = std::sqrt(agreed[strategy::kSquaredNorm]) / loss_scale;
  const bool finite = std::isfinite(norm) && std::isfinite(agreed[strategy::kLossSum]) &&
                      agreed[strategy::kNotFinite] == 0;
  const double clip =
      rules.clip_norm > 0 && norm > rules.clip_norm ? rules.clip_norm / (norm + 1e-6) : 1.0;
  double* results = doubles(instance.write(strategy::kClipResults));
  results[strategy::kGradientNorm] = norm;
  results[strategy::kFinite] = finite ? 1.0 : 0.0;
  results[strategy::kClipScale] = clip / loss_scale;
}

void update(const Environment& environment, const StepRules& rules, const Instance& instance) {
  const Bound* known = instance.find_read(strategy::kUpdateResults);
  const double* results = known == nullptr ? nullptr : doubles(known->data);
  const double* step = doubles(instance.read(strategy::kUpdateStep));
  if (results != nullptr && results[strategy::kFinite] == 0.0) return;
  const Range held = updated_range(*instance.program, *instance.op, instance.rank);
  const UnitShape& unit =
      environment.model.shape().units[static_cast<size_t>(instance.index(strategy::kUnit))];
  for (const Section& section : unit.sections) {
    const Range range{std::max(held.begin, section.begin), std::min(held.end, section.end)};
    if (range.size() <= 0) continue;
    device::UpdateCall call{
        .options = rules.optimizer,
        .learning_rate = step[strategy::kLearningRate],
        .weight_decay = section.weight_decay ? rules.optimizer.weight_decay : 0.0,
        .gradient_scale = results == nullptr ? 1.0 : results[strategy::kClipScale],
        .step = static_cast<int64_t>(step[strategy::kUpdatesBefore]) + 1,
        .weights = at_range(instance, *instance.find_write(strategy::kUpdateWeights), range),
        .gradient =
            constant(at_range(instance, *instance.find_read(strategy::kUpdateGradient), range))};
    size_t moment = 0;
    for (const Bound& operand : instance.writes)
      if (operand.slot == strategy::kUpdateMoments)
        call.states[moment++] = at_range(instance, operand, range).data;
    environment.arithmetic.update(call);
  }
}

/// The next loss scale, or 1 where there is none.
void advance_loss_scale(double* progress, bool finite) {
  optim::LossScale scale(optim::LossScaleOptions{}, progress[strategy::kNextLossScale],
                         static_cast<int64_t>(progress[strategy::kGoodSteps]));
  scale.advance(finite);
  progress[strategy::kNextLossScale] = scale.value();
  progress[strategy::kGoodSteps] = static_cast<double>(scale.good_steps());
}

/// All error feedback starts anew after a step that all skip and when the loss scale moves.
void finish_step(const StepRules& rules, const Instance& instance) {
  const bool finite = doubles(instance.read(strategy::kFinishResults))[strategy::kFinite] != 0.0;
  const double* step = doubles(instance.read(strategy::kFinishStepValues));
  double* progress = doubles(instance.write(strategy::kFinishProgress));
  if (finite) progress[strategy::kUpdatesDone] += 1;
  progress[strategy::kSequencesDone] += static_cast<double>(rules.global_batch_size);
  if (rules.scales_loss) advance_loss_scale(progress, finite);
  const bool rescaled =
      rules.scales_loss && progress[strategy::kNextLossScale] != step[strategy::kLossScale];
  progress[strategy::kFeedbackEnds] = !finite || rescaled ? 1.0 : 0.0;
}

void end_feedback(const Environment& environment, const Instance& instance) {
  const double* progress = doubles(instance.read(strategy::kFeedbackProgress));
  const int64_t every = instance.integer(strategy::kFeedbackEvery);
  const bool due = every > 0 && static_cast<int64_t>(progress[strategy::kUpdatesDone]) % every == 0;
  if (progress[strategy::kFeedbackEnds] == 0.0 && !due) return;
  const Bound& residual = *instance.find_write(strategy::kFeedbackResidual);
  environment.arithmetic.fill_zero(residual.data, residual.bytes);
}

}  // namespace

void add_step_executors(runtime::Executors& executors, const Environment& environment,
                        const StepRules& rules) {
  const auto add = [&](const program::Kernel& kernel, auto execute) {
    executors.add(kernel, Execute(execute));
  };
  add(strategy::kBeginStep, [&, rules](const Instance& i) { begin_step(environment, rules, i); });
  executors.add(strategy::kSquaredNormOf,
                runtime::MakeExecute([&](const program::Program& program, const program::Op& op) {
                  return make_squared_norm(environment, program, op);
                }));
  add(strategy::kClipFactor, [&, rules](const Instance& i) { clip_factor(environment, rules, i); });
  add(strategy::kUpdate, [&, rules](const Instance& i) { update(environment, rules, i); });
  add(strategy::kFinishStep, [rules](const Instance& i) { finish_step(rules, i); });
  add(strategy::kEndFeedback, [&](const Instance& i) { end_feedback(environment, i); });
}

}  // namespace strait::execute
