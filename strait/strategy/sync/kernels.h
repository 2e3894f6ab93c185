// Table entries of the outer optimizer and of what replicas tell each other. No LibTorch; executors
// stand in strait/execute.
//
// Group and partition of an op on state: those of the optimizer's shards, as the update's; what it
// works on is part(rank) of them, which is all of every operand but the local weights.
#pragma once

#include "strait/program/program.h"

namespace strait::strategy {

/// Outer weights - local weights.
extern const program::Kernel kOuterGradient;
enum OuterGradientOperand : int { kDifferenceOuter, kDifferenceLocal, kDifference };

/// What was just computed becomes what a round has sent.
extern const program::Kernel kKeepDifference;
enum KeepDifferenceOperand : int { kKeptFrom, kKept };

/// One step of the outer optimizer, and what becomes of the local weights (Policy::outer, mixing).
/// `sent` and `fresh` where updates are eager (optim/outer.h). `border`, where a result may be that
/// of nothing: if nobody has sent and there is nothing fresh, all stays as it is, but for local
/// weights that begin a round from the outer ones (`restarts`).
extern const program::Kernel kOuterStep;
enum OuterStepOperand : int {
  kOuterSum,
  kOuterSent,
  kOuterFresh,
  kOuterVelocity,
  kOuterWeights,
  kOuterLocal,
  kOuterBorder
};
enum OuterStepAttribute : int {
  kOuterReplicas,
  kOuterNesterov,
  kOuterLearningRate,
  kOuterMomentum,
  kOuterClip,
  kOuterPenalty,
  kOuterGap,
  kOuterMixing,
  kOuterFollowsRate,
  kOuterRestarts
};

/// Sums over the replicas become means, and the outer weights the local ones: eager replicas agree.
extern const program::Kernel kOuterMean;
enum OuterMeanOperand : int { kMeanOuter, kMeanVelocity, kMeanLocal };
enum OuterMeanAttribute : int { kMeanReplicas };

/// The outer weights change places with the local ones: before an evaluation, and after it.
extern const program::Kernel kExchangeWeights;
enum ExchangeOperand : int { kExchangedOuter, kExchangedLocal };

/// A difference into this rank's place among the pieces of all replicas, and those of all into
/// their sum, added in fp32 in the order of replicas. The op's partition is that of the pieces over
/// its group.
extern const program::Kernel kEncodeDifference;
enum EncodeDifferenceOperand : int { kEncodedDifference, kDifferencePieces };
extern const program::Kernel kSumDifferences;
enum SumDifferencesOperand : int { kSummedPieces, kSumOfDifferences };

/// What a step's ranks agreed on begins its way to the other replicas; without it, whether this one
/// had sent anything when the run was saved, which is in "border" then.
extern const program::Kernel kReportStep;
enum ReportStepOperand : int { kReportedAgreed, kReportedBorder, kReportedScalars };
/// And is there: "border", which whoever runs the steps reads.
extern const program::Kernel kTakeReports;
enum TakeReportsOperand : int { kTakenScalars, kTakenBorder };

/// "border": what all replicas agreed on when a result was last taken up. kBorderSenders: those
/// whose differences it holds; 0 where a run goes on behind its end.
enum BorderValue : int { kBorderSenders, kBorderStopRequests, kNumBorderValues };

}  // namespace strait::strategy
