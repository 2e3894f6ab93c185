// What the executors of one rank work with, and their registration. Executors keep nothing between
// two executions; what they hold here belongs to the rank or comes from outside the program.
#pragma once

#include <cstdint>
#include <functional>

#include "strait/data/loader.h"
#include "strait/device/arithmetic.h"
#include "strait/layout/layout.h"
#include "strait/model/block.h"
#include "strait/optim/options.h"
#include "strait/runtime/executors.h"

namespace strait::execute {

/// Fills the batch of one micro-step of this rank. `first_sequence`: of the step's global batch.
using BatchSource =
    std::function<void(int64_t first_sequence, int64_t micro_batch, BatchBuffer& batch)>;

/// Of one rank; outlives the executors made for it.
struct Environment {
  const model::Model& model;  // of layout.local_shape()
  const Layout& layout;
  /// `training` and the loss scale of a step are the ops' to say.
  model::Settings settings;
  device::Arithmetic& arithmetic;
  bool on_device = false;  // tokens are checked before they leave the host
  /// Where batches of documents are spread over ranks: that of the batch that was filled last.
  const sequence::RankLayout* const* layout_of_batch = nullptr;
  double* attention_seconds = nullptr;  // where given, what attention of documents takes is added
};

/// What a step takes from outside, and the rules of its scalars.
struct StepRules {
  OptimizerOptions optimizer;
  double clip_norm = 0;           // 0 = off
  int64_t total_steps = 1;        // of the run: the learning rate's schedule ends there
  int64_t global_batch_size = 1;  // sequences per step
  /// What the loss of a token weighs in the step that begins at a sequence, as a multiple of
  /// Settings::loss_scale.
  std::function<double(int64_t first_sequence)> token_weight = [](int64_t) { return 1.0; };
  bool scales_loss = false;  // fp16
  /// True when this rank was asked to stop; asked once per program.
  std::function<bool()> stop_requested = [] { return false; };
};

/// load, forward, forward_backward, forward_loss, forward_cached, backward, forward_segments,
/// backward_input, backward_weight, and the steps of shared ends.
void add_block_executors(runtime::Executors& executors, const Environment& environment,
                         BatchSource source);
/// encode, decode, decode_sum, clear. `seed`: of what codecs draw.
void add_coding_executors(runtime::Executors& executors, device::Arithmetic& arithmetic,
                          uint64_t seed = 0);
/// begin_step, squared_norm, clip_factor, update, finish_step, end_feedback; guess, keep, validate,
/// amend.
void add_step_executors(runtime::Executors& executors, const Environment& environment,
                        const StepRules& rules);

/// outer_gradient, keep_difference, outer_step, outer_mean, exchange_weights, encode_difference,
/// sum_differences, report_step, take_reports. Of the rules those of the learning rate.
void add_outer_executors(runtime::Executors& executors, device::Arithmetic& arithmetic,
                         const StepRules& rules);

/// project_right, project_left, expand_factors; on plain memory. `seed`: of factors that are drawn.
void add_low_rank_executors(runtime::Executors& executors, uint64_t seed = 0);

/// gather_gradient.
void add_adapt_executors(runtime::Executors& executors, device::Arithmetic& arithmetic);

}  // namespace strait::execute
