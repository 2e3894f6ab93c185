// Table entry of what adapts a compressed all-reduce. No LibTorch; its executor stands in
// strait/execute.
#pragma once

#include "strait/program/program.h"

namespace strait::strategy {

/// Adds the reduced gradient of a unit to "gathered" in the steps that a choice of settings looks
/// at; the first of them overwrites. Leaves out steps whose gradients are not finite.
extern const program::Kernel kGatherGradient;
enum GatherGradientOperand : int { kGatheredGradient, kGatherResults, kGathered };
/// The step that runs, and when settings are chosen (AdaptPolicy).
enum GatherGradientAttribute : int { kGatherStep, kGatherStart, kGatherEvery, kGatherSteps };

}  // namespace strait::strategy
