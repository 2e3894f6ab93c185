// Executors of what a step begins and ends with: its scalars, the gradient norm, the optimizer.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "strait/execute/environment.h"
#include "strait/optim/loss_scale.h"
#include "strait/optim/schedule.h"
#include "strait/strategy/finish/kernels.h"
#include "strait/strategy/finish/postponed_kernels.h"
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
  step[strategy::kTokenWeight] =
      rules.token_weight(static_cast<int64_t>(progress[strategy::kSequencesDone]));
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

/// "results" of agreed scalars, or of a rank's part of them. A step is taken if they are finite.
void find_results(const StepRules& rules, const double* agreed, double loss_scale,
                  double* results) {
  const double norm = std::sqrt(agreed[strategy::kSquaredNorm]) / loss_scale;
  const bool finite = std::isfinite(norm) && std::isfinite(agreed[strategy::kLossSum]) &&
                      agreed[strategy::kNotFinite] == 0;
  const double clip =
      rules.clip_norm > 0 && norm > rules.clip_norm ? rules.clip_norm / (norm + 1e-6) : 1.0;
  results[strategy::kGradientNorm] = norm;
  results[strategy::kFinite] = finite ? 1.0 : 0.0;
  results[strategy::kClipScale] = clip / loss_scale;
}

/// Of all ranks: a batch without a token whose loss counts changes nothing either.
void find_agreed_results(const StepRules& rules, const double* agreed, double loss_scale,
                         double* results) {
  find_results(rules, agreed, loss_scale, results);
  if (agreed[strategy::kLossCount] == 0) results[strategy::kFinite] = 0.0;
}

void clip_factor(const Environment& environment, const StepRules& rules, const Instance& instance) {
  std::array<double, strategy::kNumAgreed> agreed{};
  environment.arithmetic.get(instance.read(strategy::kClipAgreed), agreed.data(), sizeof(agreed));
  const double loss_scale = doubles(instance.read(strategy::kClipStep))[strategy::kLossScale];
  find_agreed_results(rules, agreed.data(), loss_scale,
                      doubles(instance.write(strategy::kClipResults)));
}

/// An update, whichever kernel makes it: slots of its operands, the step's values, and what the
/// gradient is multiplied by.
struct ShardUpdate {
  int gradient, weights, moments, rounded;  // rounded: -1: the kernel has none
  const double* step;
  double scale;
};

void update_shard(const Environment& environment, const StepRules& rules, const Instance& instance,
                  const ShardUpdate& made) {
  const Range held = updated_range(*instance.program, *instance.op, instance.rank);
  const UnitShape& unit =
      environment.model.shape().units[static_cast<size_t>(instance.index(strategy::kUnit))];
  for (const Section& section : unit.sections) {
    const Range range{std::max(held.begin, section.begin), std::min(held.end, section.end)};
    if (range.size() <= 0) continue;
    device::UpdateCall call{
        .options = rules.optimizer,
        .learning_rate = made.step[strategy::kLearningRate],
        .weight_decay = section.weight_decay ? rules.optimizer.weight_decay : 0.0,
        .gradient_scale = made.scale,
        .step = static_cast<int64_t>(made.step[strategy::kUpdatesBefore]) + 1,
        .weights = at_range(instance, *instance.find_write(made.weights), range),
        .gradient = constant(at_range(instance, *instance.find_read(made.gradient), range))};
    size_t moment = 0;
    for (const Bound& operand : instance.writes)
      if (operand.slot == made.moments)
        call.states[moment++] = at_range(instance, operand, range).data;
    if (const Bound* rounded = instance.find_write(made.rounded))
      call.rounded = at_range(instance, *rounded, range).data;
    environment.arithmetic.update(call);
  }
}

void update(const Environment& environment, const StepRules& rules, const Instance& instance) {
  const Bound* known = instance.find_read(strategy::kUpdateResults);
  const double* results = known == nullptr ? nullptr : doubles(known->data);
  if (results != nullptr && results[strategy::kFinite] == 0.0) return;
  update_shard(environment, rules, instance,
               {strategy::kUpdateGradient, strategy::kUpdateWeights, strategy::kUpdateMoments,
                strategy::kUpdateRounded, doubles(instance.read(strategy::kUpdateStep)),
                results == nullptr ? 1.0 : results[strategy::kClipScale]});
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
void advance(const StepRules& rules, bool finite, const double* step, double* progress) {
  if (finite) progress[strategy::kUpdatesDone] += 1;
  progress[strategy::kSequencesDone] += static_cast<double>(rules.global_batch_size);
  if (rules.scales_loss) advance_loss_scale(progress, finite);
  const bool rescaled =
      rules.scales_loss && progress[strategy::kNextLossScale] != step[strategy::kLossScale];
  progress[strategy::kFeedbackEnds] = !finite || rescaled ? 1.0 : 0.0;
}

void finish_step(const StepRules& rules, const Instance& instance) {
  const Bound* validated = instance.find_read(strategy::kFinishValidated);
  if (validated != nullptr && doubles(validated->data)[strategy::kTakenBack] != 0.0) return;
  const bool finite = doubles(instance.read(strategy::kFinishResults))[strategy::kFinite] != 0.0;
  advance(rules, finite, doubles(instance.read(strategy::kFinishStepValues)),
          doubles(instance.write(strategy::kFinishProgress)));
}

/// The update takes gradients as they are.
bool takes_as_is(const double* results, double loss_scale) {
  return results[strategy::kFinite] != 0.0 && results[strategy::kClipScale] == 1.0 / loss_scale;
}

/// A part of a sum of squares is no larger than the whole, in floating point too, and what is not
/// finite stays so: what one rank refuses, all refuse.
void guess(const Environment& environment, const StepRules& rules, const Instance& instance) {
  std::array<double, strategy::kNumAgreed> own{};
  environment.arithmetic.get(instance.read(strategy::kGuessAgreed), own.data(), sizeof(own));
  environment.arithmetic.put(own.data(), instance.write(strategy::kGuessPending), sizeof(own));
  const double* step = doubles(instance.find_read(strategy::kGuessStep)->data);
  const double* progress = doubles(instance.find_read(strategy::kGuessProgress)->data);
  const bool is_void =
      doubles(instance.find_read(strategy::kGuessValidated)->data)[strategy::kTakenBack] != 0.0;
  double* results = doubles(instance.find_write(strategy::kGuessResults)->data);
  find_results(rules, own.data(), step[strategy::kLossScale], results);
  const bool updates = !is_void && takes_as_is(results, step[strategy::kLossScale]);
  results[strategy::kFinite] = updates ? 1.0 : 0.0;
  double* kept = doubles(instance.find_write(strategy::kGuessKept)->data);
  std::copy_n(step, strategy::kNumStepValues, kept + strategy::kKeptStep);
  std::copy_n(progress, strategy::kNumProgress, kept + strategy::kKeptProgress);
  kept[strategy::kKeptPending] = is_void ? 0.0 : 1.0;
  kept[strategy::kKeptUpdated] = updates ? 1.0 : 0.0;
}

void validate(const Environment& environment, const StepRules& rules, const Instance& instance) {
  double* kept = doubles(instance.find_write(strategy::kValidateKept)->data);
  double* validated = doubles(instance.find_write(strategy::kValidateValidated)->data);
  std::fill_n(validated, strategy::kNumValidated, 0.0);
  if (kept[strategy::kKeptPending] == 0.0) return;
  kept[strategy::kKeptPending] = 0.0;
  double* const agreed = validated + strategy::kValidAgreed;
  environment.arithmetic.get(instance.read(strategy::kValidatePending), agreed,
                             strategy::kNumAgreed * sizeof(double));
  double* const step = validated + strategy::kValidStep;
  std::copy_n(kept + strategy::kKeptStep, strategy::kNumStepValues, step);
  double* const results = validated + strategy::kValidResults;
  find_agreed_results(rules, agreed, step[strategy::kLossScale], results);
  const bool right = takes_as_is(results, step[strategy::kLossScale]);
  if (right && kept[strategy::kKeptUpdated] != 0.0) return;
  validated[strategy::kTakenBack] = 1.0;
  double* progress = doubles(instance.find_write(strategy::kValidateProgress)->data);
  std::copy_n(kept + strategy::kKeptProgress, strategy::kNumProgress, progress);
  advance(rules, results[strategy::kFinite] != 0.0, step, progress);
}

/// The nth operand in a slot.
const Bound& nth_of(const std::vector<Bound>& operands, int slot, int nth) {
  return *std::ranges::find_if(
      operands, [&](const Bound& operand) { return operand.slot == slot && nth-- == 0; });
}

/// As numbers of no codec: a copy.
void copy(const Environment& environment, const codec::Values& from, const codec::Values& to) {
  const std::span<const uint8_t> bytes(
      static_cast<const uint8_t*>(from.data),
      static_cast<size_t>(from.elements * dtype_bytes(from.dtype)));
  environment.arithmetic.decode({}, bytes, to, false);
}

void keep(const Environment& environment, const Instance& instance) {
  const Range range = updated_range(*instance.program, *instance.op, instance.rank);
  if (range.size() <= 0) return;
  int nth = 0;
  for (const Bound& operand : instance.reads) {
    const bool weights = operand.slot == strategy::kKeepWeights;
    const Bound& kept = weights ? *instance.find_write(strategy::kKeepWeightsCopy)
                                : nth_of(instance.writes, strategy::kKeepMomentsCopy, nth++);
    copy(environment, at_range(instance, operand, range), at_range(instance, kept, range));
  }
}

/// Weights and moments become their copies.
void take_back(const Environment& environment, const Instance& instance) {
  const Range range = updated_range(*instance.program, *instance.op, instance.rank);
  if (range.size() <= 0) return;
  int nth = 0;
  for (const Bound& operand : instance.writes) {
    const bool weights = operand.slot == strategy::kAmendWeights;
    if (!weights && operand.slot != strategy::kAmendMoments) continue;
    const Bound& kept = weights ? *instance.find_write(strategy::kAmendWeightsCopy)
                                : nth_of(instance.writes, strategy::kAmendMomentsCopy, nth++);
    copy(environment, at_range(instance, kept, range), at_range(instance, operand, range));
  }
}

void amend(const Environment& environment, const StepRules& rules, const Instance& instance) {
  const double* validated = doubles(instance.read(strategy::kAmendValidated));
  if (validated[strategy::kTakenBack] == 0.0) return;
  take_back(environment, instance);
  const double* results = validated + strategy::kValidResults;
  if (results[strategy::kFinite] == 0.0) return;
  update_shard(environment, rules, instance,
               {strategy::kAmendGradient, strategy::kAmendWeights, strategy::kAmendMoments, -1,
                validated + strategy::kValidStep, results[strategy::kClipScale]});
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
  add(strategy::kGuess, [&, rules](const Instance& i) { guess(environment, rules, i); });
  add(strategy::kKeep, [&](const Instance& i) { keep(environment, i); });
  add(strategy::kValidate, [&, rules](const Instance& i) { validate(environment, rules, i); });
  add(strategy::kAmend, [&, rules](const Instance& i) { amend(environment, rules, i); });
  add(strategy::kFinishStep, [rules](const Instance& i) { finish_step(rules, i); });
  add(strategy::kEndFeedback, [&](const Instance& i) { end_feedback(environment, i); });
}

}  // namespace strait::execute
