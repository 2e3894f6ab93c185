// The scalars that pass between the operations of a step: what its ranks agree on, what follows
// from that, what a step reads, and what lives from step to step. All fp64.
#pragma once

namespace strait::strategy {

/// "agreed", summed over all ranks at the end of a step. kStopRequests: ranks asked to stop.
/// kNotFinite: numbers that encoders met.
enum Agreed : int { kLossSum, kLossCount, kSquaredNorm, kStopRequests, kNotFinite, kNumAgreed };

/// "results", which clip_factor derives from them: gradient norm, what gradients are multiplied by,
/// 1 when all is finite.
enum Result : int { kGradientNorm, kClipScale, kFinite, kNumResults };

/// "step", which begin_step writes: rate of this update, loss scale, updates before it, first
/// sequence of the global batch, what a token's loss weighs beside the usual.
enum StepValue : int {
  kLearningRate,
  kLossScale,
  kUpdatesBefore,
  kFirstSequence,
  kTokenWeight,
  kNumStepValues
};

/// "progress", which finish_step takes on; saved by checkpoints.
enum Progress : int {
  kUpdatesDone,
  kSequencesDone,
  kNextLossScale,
  kGoodSteps,     // since the loss scale last changed or a step was skipped
  kFeedbackEnds,  // 1: all residuals of error feedback start anew
  kNumProgress
};

}  // namespace strait::strategy
