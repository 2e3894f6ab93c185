// The validation loss of a checkpoint, by one rank that holds the weights and nothing of training.
#pragma once

#include "strait/checkpoint/reader.h"
#include "strait/shape/shape.h"
#include "strait/train/validation.h"

namespace strait::train {

/// What is evaluated, and with what.
struct EvaluationJob {
  const checkpoint::CheckpointReader& reader;
  const ModelShape& shape;
  const ValidationWindows& validation;
  ValidationPlan plan;  // of one rank
  Dtype dtype = Dtype::kFloat32;
  int threads = 1;
  uint64_t seed = 0;       // of the run: a U-Net draws its noise from it
  bool documents = false;  // attention stays inside each
};

/// Mean loss in nats per token over the plan's windows. UserError for a damaged checkpoint, weights
/// that are not finite, or windows without a token that counts; NothingFits before anything is
/// allocated; NonFinite when the loss is no number.
double evaluate_checkpoint(const EvaluationJob& job);

}  // namespace strait::train
