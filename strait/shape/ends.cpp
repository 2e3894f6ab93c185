#include "strait/shape/ends.h"

#include <array>

#include "strait/shape/block_layout.h"

namespace strait {
namespace {

using enum EndValue;

constexpr std::array<const char*, kNumEndSteps> kStepNames = {
    "look_up",    "embed",     "head_moments", "head_norm",          "head_logits",
    "head_parts", "head_loss", "head_slopes",  "head_norm_gradient", "head_gradient"};
constexpr std::array<const char*, kNumEndValues> kValueNames = {
    "embedding_sum", "head_moments",    "head_statistics",       "head_normed",      "logits",
    "loss_parts",    "normed_gradient", "head_gradient_moments", "head_norm_weights"};

int64_t statistics_of(const ModelShape& model) { return model.style.rms_norm ? 1 : 2; }

}  // namespace

const char* end_step_name(EndStep step) { return kStepNames[static_cast<size_t>(step)]; }
const char* end_value_name(EndValue value) { return kValueNames[static_cast<size_t>(value)]; }

bool partial_over_x(EndValue value) {
  return value == kEmbeddingSum || value == kParts || value == kNormedGradient ||
         value == kNormWeights;
}

bool partial_over_y(EndValue value) {
  return value == kMoments || value == kLogits || value == kGradientMoments;
}

bool is_exchanged_by_rows(EndValue value) {
  return value == kEmbeddingSum || value == kNormed || value == kNormedGradient;
}

Dtype end_value_dtype(EndValue value, Dtype dtype) {
  if (value == kMoments || value == kGradientMoments || value == kParts) return Dtype::kFloat64;
  const bool wide = value == kStatistics || value == kLogits || value == kNormWeights;
  return wide && wide_elements(dtype) > 1 ? Dtype::kFloat32 : dtype;
}

int64_t end_value_elements(EndValue value, const ModelShape& model, int64_t rows) {
  const int64_t own_rows = model.splits_rows ? rows / model.x : rows;
  switch (value) {
    case kMoments:
    case kGradientMoments:
      return model.y > 1 ? own_rows * statistics_of(model) : 0;
    case kStatistics:
      return own_rows * statistics_of(model);
    case kNormWeights:
      return model.splits_rows ? 2 * model.options.width / model.y : 0;
    case kLogits:
      return rows * (model.vocabulary / model.x);
    case kParts:
      return model.x * rows * 3;
    case kEmbeddingSum:
    case kNormed:
    case kNormedGradient:
      break;
  }
  return rows * (model.options.width / model.y);
}

const EndUses& end_uses(EndStep step, bool splits_rows) {
  using Table = std::array<EndUses, kNumEndSteps>;
  static const Table whole = {
      EndUses{{}, {kEmbeddingSum}, {}},
      EndUses{{kEmbeddingSum}, {}, {}},
      EndUses{{}, {kMoments}, {}},
      EndUses{},
      EndUses{{kMoments}, {kStatistics, kNormed, kLogits}, {}},
      EndUses{{kLogits}, {kParts}, {}},
      EndUses{{kParts}, {kNormedGradient}, {kLogits}},
      EndUses{{kStatistics, kNormedGradient}, {kGradientMoments}, {}},
      EndUses{},
      EndUses{{kStatistics, kNormed, kLogits, kNormedGradient, kGradientMoments}, {}, {}}};
  static const Table split = [] {
    Table table = whole;
    const auto set = [&](EndStep at, EndUses uses) { table[static_cast<size_t>(at)] = uses; };
    set(EndStep::kNorm, {{kMoments}, {kStatistics, kNormed}, {}});
    set(EndStep::kLogits, {{kNormed}, {kLogits}, {}});
    set(EndStep::kNormGradient,
        {{kStatistics, kNormedGradient, kGradientMoments}, {kNormWeights}, {}});
    set(EndStep::kGradient, {{kNormed, kLogits, kNormWeights}, {}, {}});
    return table;
  }();
  return (splits_rows ? split : whole)[static_cast<size_t>(step)];
}

std::vector<EndStep> head_steps(const ModelShape& model, bool trains) {
  std::vector<EndStep> steps;
  if (model.y > 1) steps.push_back(EndStep::kMoments);
  if (model.splits_rows) steps.push_back(EndStep::kNorm);
  for (const EndStep step : {EndStep::kLogits, EndStep::kParts, EndStep::kLoss})
    steps.push_back(step);
  if (!trains) return steps;
  if (model.y > 1) steps.push_back(EndStep::kSlopes);
  if (model.splits_rows) steps.push_back(EndStep::kNormGradient);
  steps.push_back(EndStep::kGradient);
  return steps;
}

double end_flops(EndStep step, const ModelShape& model, int64_t rows) {
  const bool multiplies =
      step == EndStep::kLogits || step == EndStep::kLoss || step == EndStep::kGradient;
  if (!multiplies) return 0.0;
  return 2.0 * static_cast<double>(rows) * static_cast<double>(model.vocabulary / model.x) *
         static_cast<double>(model.options.width / model.y);
}

}  // namespace strait
