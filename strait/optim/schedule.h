// The learning rate over a run, and the check of [optimizer].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/optim/options.h"

namespace strait::optim {

/// Share of the decay steps that `wsd` (warm-up, stable, decay; arXiv 2404.06395) holds before it
/// falls.
inline constexpr double kStableShare = 0.8;

/// Learning rate of optimizer step `step` (0-based) in a run of `train_steps`. With W =
/// warmup_steps and D = decay_steps (train_steps when 0):
///   step < W   learning_rate * (step + 1) / (W + 1), whatever the schedule
///   constant   learning_rate
///   linear     straight from learning_rate at W to minimum_learning_rate at D
///   cosine     half a cosine between the same two points (Loshchilov and Hutter, arXiv 1608.03983)
///   wsd        learning_rate until W + kStableShare * (D - W), then straight to the minimum at D
/// From step D on, all but `constant` stay at the minimum. W may exceed D or the run.
/// Precondition: the options passed validate_optimizer; InternalError on an unknown schedule.
double learning_rate(const OptimizerOptions& options, int64_t step, int64_t train_steps);

/// Throws UserError, `place().key` set, on values outside their range, unknown words, and values
/// that cannot take effect (the message says what can). A value at its default is never refused for
/// having no effect.
void validate_optimizer(const OptimizerOptions& options);

const std::vector<std::string>& optimizer_kinds();
const std::vector<std::string>& schedule_names();

}  // namespace strait::optim
