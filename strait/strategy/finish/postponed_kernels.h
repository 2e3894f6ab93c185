// Table entries of a step that the next one validates. No LibTorch; executors stand in
// strait/execute.
#pragma once

#include "strait/program/program.h"
#include "strait/strategy/finish/step_values.h"

namespace strait::strategy {

/// "kept": what a step leaves to whoever validates it. All 0 where there is nothing to validate.
enum KeptScalar : int {
  kKeptStep,                                    // kNumStepValues from here on
  kKeptProgress = kKeptStep + kNumStepValues,   // kNumProgress from here on: before the step
  kKeptPending = kKeptProgress + kNumProgress,  // 1: there is a step to validate
  kKeptUpdated,                                 // 1: this rank has made its update
  kNumKept
};

/// "validated": of the step before, what a step without post-validation has in "results", "agreed"
/// and "step". All 0 where there was nothing to validate.
enum Validated : int {
  kValidResults,                               // kNumResults from here on
  kValidAgreed = kValidResults + kNumResults,  // kNumAgreed from here on
  kValidStep = kValidAgreed + kNumAgreed,      // kNumStepValues from here on
  kTakenBack = kValidStep + kNumStepValues,    // 1: the update was; the step under way is void
  kNumValidated
};

/// Stands where clip_factor does: "results" by what this rank alone knows, "pending" for all to sum
/// up, and "kept". It lets the rank update unless that is clipped or not finite by its own part of
/// the norm, or the step is void.
extern const program::Kernel kGuess;
enum GuessOperand : int {
  kGuessAgreed,
  kGuessStep,
  kGuessProgress,
  kGuessValidated,
  kGuessResults,
  kGuessPending,
  kGuessKept
};

/// Copies what an update changes of a shard. Group, partition and attribute as kUpdate.
extern const program::Kernel kKeep;
enum KeepOperand : int { kKeepWeights, kKeepMoments, kKeepWeightsCopy, kKeepMomentsCopy };

/// What all ranks know of the step before: whether its update was right. If not, "progress" becomes
/// what that step should have left.
extern const program::Kernel kValidate;
enum ValidateOperand : int {
  kValidatePending,
  kValidateKept,
  kValidateValidated,
  kValidateProgress
};

/// Where "validated" says so, a shard becomes its copy again and is updated as all ranks agree,
/// with the gradient of the step before; else nothing. The copies are lost. Group, partition and
/// attribute as kUpdate. Costs nothing in the models: it is the exception.
extern const program::Kernel kAmend;
enum AmendOperand : int {
  kAmendGradient,
  kAmendValidated,
  kAmendWeights,
  kAmendMoments,
  kAmendWeightsCopy,
  kAmendMomentsCopy
};

}  // namespace strait::strategy
