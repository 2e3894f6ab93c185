// Steps that the next one validates: what the trainer reports of them, and when it waits for all
// ranks (strategy/finish/postpone.h).
#include "strait/strategy/finish/postponed_kernels.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/train/trainer.h"

namespace strait::train {

bool Trainer::is_border(int64_t steps) const {
  const Run& run = job_.design.run;
  const auto due = [&](int64_t every) { return every > 0 && steps % every == 0; };
  return steps >= run.train.steps || due(run.evaluation.every_steps) ||
         due(run.checkpoint.every_steps);
}

void Trainer::settle(int64_t step, runtime::RunTimes& times) {
  step_ = step;
  times += run_between(strategy::kForSettling, step, step + 1);
}

Trainer::StepResult Trainer::validated_step(int64_t step) {
  StepResult result;
  const auto run = [&](int64_t number) {
    step_ = number;
    shared_.recorders[rank_].record_all(number - first_step_ <
                                        job_.design.run.output.timeline_steps);
    result.times += runner_.run(strategy::kForStep, number, number + 1);
  };
  if (!under_way_) run(step);
  const bool settles = stop_asked_ || is_border(step + 1);
  settles ? settle(step, result.times) : run(step + 1);
  const auto values = state_.read<double, strategy::kNumValidated>("validated");
  const double* results = values.data() + strategy::kValidResults;
  const double* agreed = values.data() + strategy::kValidAgreed;
  const double* own = values.data() + strategy::kValidStep;
  const bool taken_back = values[strategy::kTakenBack] != 0;
  if (taken_back && lead()) ++shared_.outcome.steps_taken_back;
  under_way_ = !settles && !taken_back;
  result.loss = agreed[strategy::kLossSum] / agreed[strategy::kLossCount];
  result.counted = agreed[strategy::kLossCount] > 0;
  result.not_encoded = agreed[strategy::kNotFinite];
  stop_asked_ = stop_asked_ || agreed[strategy::kStopRequests] > 0;
  result.stop = stop_asked_ && !under_way_;
  result.gradient_norm = results[strategy::kGradientNorm];
  result.finite = results[strategy::kFinite] != 0;
  result.loss_scale = own[strategy::kLossScale];
  return result;
}

}  // namespace strait::train
