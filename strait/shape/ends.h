// The embedding and the head of a model whose blocks several ranks share, in steps between which
// collectives stand. Ranks of x have some rows of the token matrices (vocabulary-parallel), ranks
// of y some columns.
//
// clang-format off
//   step           of         what it does                                  summed behind it, over
//   look_up        embedding  tokens -> embedding_sum                       embedding_sum, x
//   embed          embedding  embedding_sum -> output: positions, dropout
//   head_moments   head       input -> head_moments                         head_moments, y
//   head_logits    head       input -> normed, logits                       logits, y
//   head_parts     head       logits -> loss_parts                          loss_parts, x
//   head_loss      head       loss; its slope -> normed_gradient            normed_gradient, x
//   head_slopes    head       -> head_gradient_moments                      head_gradient_moments, y
//   head_gradient  head       -> input_gradient, gradients of the unit
// clang-format on
//
// Where rows are split (segment.h) embed, head_moments and head_slopes work on a rank's rows:
// embedding_sum is scattered, and two more steps part what is done by rows from the products:
//
// clang-format off
//   head_norm          input -> head_normed                                 gathered: head_normed
//   head_logits        head_normed -> logits
//   ...                                                                     scattered: normed_gradient
//   head_norm_gradient -> input_gradient, head_norm_weights                 head_norm_weights, x
//   head_gradient      gradients of the unit
// clang-format on
//
// Where x is 1, look_up and embed are the block's forward. Where y is 1, head_moments and
// head_slopes do not exist. Of the logits a rank has those of its rows: it says what it has of the
// maximum, of the sum of exponentials and of the target's logit, and all ranks of x make the same
// loss of that.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/shape/shape.h"

namespace strait {

/// In forward order.
enum class EndStep : uint8_t {
  kLookUp,
  kEmbed,
  kMoments,
  kNorm,
  kLogits,
  kParts,
  kLoss,
  kSlopes,
  kNormGradient,
  kGradient
};
inline constexpr int kNumEndSteps = 10;
const char* end_step_name(EndStep step);

enum class EndValue : uint8_t {
  kEmbeddingSum,     // [rows, width]
  kMoments,          // [rows, 1 or 2] fp64: as BlockValue::kAttentionMoments
  kStatistics,       // [1 or 2, rows] wide: rstd, mean
  kNormed,           // [rows, width]
  kLogits,           // [rows, vocabulary] wide; the slope of the loss takes their place
  kParts,            // [x, rows, 3] fp64: maximum, sum of exp(logit - maximum), target's logit or 0
  kNormedGradient,   // [rows, width]
  kGradientMoments,  // [rows, 1 or 2] fp64: as BlockValue::kAttentionGradientMoments
  kNormWeights,      // [2, width] wide: gradients of the norm's weight and bias
};
inline constexpr int kNumEndValues = 9;
const char* end_value_name(EndValue value);
bool partial_over_x(EndValue value);
bool partial_over_y(EndValue value);
/// As that of BlockValue.
bool is_exchanged_by_rows(EndValue value);

/// Sizes of one rank, rows = batch * tokens. `model` is the rank's part.
Dtype end_value_dtype(EndValue value, Dtype dtype);
int64_t end_value_elements(EndValue value, const ModelShape& model, int64_t rows);

struct EndUses {
  std::vector<EndValue> reads, writes;
  std::vector<EndValue> updates;  // in training
};
const EndUses& end_uses(EndStep step, bool splits_rows);
/// The steps of a head that ranks of the model's x and y share.
std::vector<EndStep> head_steps(const ModelShape& model, bool trains);
double end_flops(EndStep step, const ModelShape& model, int64_t rows);

/// Whether ranks share the blocks of the model.
inline bool is_shared(const ModelShape& model) { return model.x > 1 || model.y > 1; }

}  // namespace strait
