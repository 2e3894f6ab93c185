// Table entries of what a step begins and ends with. No LibTorch; executors stand in
// strait/execute.
#pragma once

#include "strait/program/program.h"

namespace strait::strategy {

/// Takes what a step needs from outside and from the steps before: writes "step" and "agreed", in
/// which it says whether this rank was asked to stop; reads "progress". Attribute: none.
extern const program::Kernel kBeginStep;
enum BeginStepOperand : int { kBeginProgress, kBeginStepValues, kBeginAgreed };

/// Adds this rank's part of the squared gradient norm to "agreed". Group and partition: those of
/// the optimizer's shards; a rank counts its shard's part among the replicas that hold the same
/// one.
extern const program::Kernel kSquaredNormOf;
enum SquaredNormOperand : int { kNormGradient, kNormAgreed };

/// Agreed scalars to "results": norm, clip factor with the loss scale taken out, whether all is
/// finite.
extern const program::Kernel kClipFactor;
enum ClipFactorOperand : int { kClipAgreed, kClipStep, kClipResults };

/// Optimizer on a shard: part(rank) of the partition in the group. Changes nothing when the results
/// say that something is not finite; without them, that is during the backward pass, it takes
/// gradients as they are. The weights' new values go, rounded, into "rounded" too.
extern const program::Kernel kUpdate;
enum UpdateOperand : int {
  kUpdateGradient,
  kUpdateStep,
  kUpdateResults,
  kUpdateWeights,
  kUpdateMoments,
  kUpdateRounded
};

/// Attribute of the last two kernels on a unit: its number.
enum UnitAttribute : int { kUnit };

/// What the next step starts from: counts updates and sequences, moves the loss scale, and says
/// whether all error feedback starts anew. With "validated" (postponed_kernels.h): nothing when the
/// step is void.
extern const program::Kernel kFinishStep;
enum FinishStepOperand : int {
  kFinishResults,
  kFinishStepValues,
  kFinishProgress,
  kFinishValidated
};

/// Zeroes a residual of error feedback when "progress" says so, and every so many updates; 0:
/// never.
extern const program::Kernel kEndFeedback;
enum EndFeedbackOperand : int { kFeedbackProgress, kFeedbackResidual };
enum EndFeedbackAttribute : int { kFeedbackEvery };

}  // namespace strait::strategy
