#include "strait/train/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "strait/base/errors.h"
#include "strait/layout/layout.h"
#include "strait/optim/adamw.h"
#include "strait/optim/norm.h"
#include "strait/optim/sgd.h"
#include "strait/strategy/compose/compose.h"

namespace strait::train {

using program::OpKind;
using program::Role;
using runtime::Bound;
using runtime::Instance;

namespace {

/// Pointer to element `range.begin` of the unit inside an operand that holds all of it or one part.
template <class T>
T* at_range(const Instance& instance, const Bound& operand, const Range& range, int64_t rank) {
  const program::ValueArray& array = instance.program->arrays[operand.array];
  const int64_t first = program::value_begin(*instance.program, array, rank);
  return static_cast<T*>(operand.data) + (range.begin - first);
}

const Bound& operand_of(const std::vector<Bound>& operands, Role role, int64_t nth = 0) {
  for (const Bound& operand : operands)
    if (operand.role == role && nth-- == 0) return operand;
  throw InternalError("an op lacks an operand that its executor needs");
}

}  // namespace

void ModelExecutor::set_prompt(int64_t batch, int64_t tokens, int64_t position, int64_t capacity) {
  batch_ = {};
  batch_.batch = batch;
  batch_.tokens = tokens;
  cache_position_ = position;
  cache_capacity_ = capacity;
}

void ModelExecutor::execute(const Instance& instance) {
  switch (instance.op->kind) {
    case OpKind::kLoad:
      return load(instance);
    case OpKind::kForward:
      return forward(instance);
    case OpKind::kForwardBackward:
      return loss(instance, true);
    case OpKind::kForwardLoss:
      return loss(instance, false);
    case OpKind::kBackward:
      return backward(instance);
    case OpKind::kForwardCached:
      return forward_cached(instance);
    case OpKind::kSquaredNorm:
      return squared_norm(instance);
    case OpKind::kClipFactor:
      return clip_factor(instance);
    case OpKind::kUpdate:
      return update(instance);
    case OpKind::kEncode:
      return encode(instance);
    case OpKind::kDecode:
    case OpKind::kDecodeSum:
      return coding_.decode(instance, rank_, settings_.threads);
    default:
      break;
  }
  if (instance.op->custom != "begin_step")
    throw InternalError("no executor for the op " +
                        program::print_op(*instance.program, *instance.op));
  double* agreed = static_cast<double*>(instance.write(Role::kScalars));
  std::fill(agreed, agreed + strategy::kNumAgreed, 0.0);
  agreed[strategy::kStopRequests] = step_.stop_requested ? 1.0 : 0.0;
}

void ModelExecutor::load(const Instance& instance) {
  source_(instance.micro_batch, buffer_);
  const int64_t rows = static_cast<int64_t>(buffer_.inputs.size());
  const int64_t sequences = static_cast<int64_t>(buffer_.sequences.size());
  char* out = static_cast<char*>(instance.write(Role::kTokens));
  const auto put = [&](const auto& values, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(values[0]);
    std::memcpy(out, values.data(), bytes);
    out += bytes;
  };
  batch_ = {};
  batch_.batch = sequences;
  batch_.tokens = rows / sequences;
  batch_.sequences = reinterpret_cast<const int64_t*>(out);
  put(buffer_.sequences, sequences);
  batch_.inputs = reinterpret_cast<const int32_t*>(out);
  put(buffer_.inputs, rows);
  batch_.targets = reinterpret_cast<const int32_t*>(out);
  put(buffer_.targets, rows);
  if (!options_.documents) return;
  batch_.document_starts = reinterpret_cast<const int32_t*>(out);
  put(buffer_.document_starts, rows);
}

model::Call ModelExecutor::call(const Instance& instance) const {
  model::Call call;
  call.settings = &settings_;
  call.batch = &batch_;
  call.weights = instance.read(Role::kWeights);
  call.input = instance.read(Role::kInput);
  call.output = instance.write(Role::kOutput);
  call.output_gradient = instance.read(Role::kOutputGradient);
  call.input_gradient = instance.write(Role::kInputGradient);
  call.gradient = instance.write(Role::kGradient);
  call.accumulate = instance.op->accumulate;
  call.workspace = instance.workspace;
  return call;
}

void ModelExecutor::forward(const Instance& instance) {
  model::Call c = call(instance);
  c.saved = instance.write(Role::kSaved);
  model_.block(instance.block).forward(c, instance.op->segment_begin, instance.op->segment_end);
}

void ModelExecutor::loss(const Instance& instance, bool backward) {
  model::Call c = call(instance);
  double* agreed = static_cast<double*>(instance.write(Role::kScalars));
  int64_t count = 0;
  c.loss_sum = agreed + strategy::kLossSum;
  c.loss_count = &count;
  if (!backward) c.gradient = nullptr;
  model_.block(instance.block).forward_backward(c);
  agreed[strategy::kLossCount] += static_cast<double>(count);
}

void ModelExecutor::backward(const Instance& instance) {
  model::Call c = call(instance);
  c.saved = instance.read(Role::kSaved);
  model_.block(instance.block).backward(c);
}

void ModelExecutor::forward_cached(const Instance& instance) {
  model::Call c = call(instance);
  batch_.inputs = static_cast<const int32_t*>(instance.read(Role::kTokens));
  c.cache = instance.write(Role::kCache);
  c.cache_capacity = cache_capacity_;
  c.position = cache_position_;
  if (model_.shape().blocks[instance.block].kind == BlockKind::kHead) {
    c.logits = c.output;
    c.output = nullptr;
  }
  model_.block(instance.block).forward_cached(c);
}

void ModelExecutor::encode(const Instance& instance) {
  const int64_t not_finite = coding_.encode(instance, rank_, settings_.threads);
  double* agreed = static_cast<double*>(instance.write(Role::kScalars));
  if (agreed != nullptr) agreed[strategy::kNotFinite] += static_cast<double>(not_finite);
}

void ModelExecutor::squared_norm(const Instance& instance) {
  const Range range = counted_range(*instance.program, *instance.op, rank_);
  double* agreed = static_cast<double*>(instance.write(Role::kScalars));
  const Bound& gradient = operand_of(instance.reads, Role::kGradient);
  const size_t count = static_cast<size_t>(range.size());
  if (settings_.dtype == Dtype::kFloat64)
    agreed[strategy::kSquaredNorm] += optim::squared_norm(
        std::span<const double>(at_range<double>(instance, gradient, range, rank_), count),
        settings_.threads);
  else
    agreed[strategy::kSquaredNorm] += optim::squared_norm(
        std::span<const float>(at_range<float>(instance, gradient, range, rank_), count),
        settings_.threads);
}

void ModelExecutor::clip_factor(const Instance& instance) {
  const double* agreed = static_cast<const double*>(instance.read(Role::kScalars));
  double* results = static_cast<double*>(instance.write(Role::kScalars));
  const double norm = std::sqrt(agreed[strategy::kSquaredNorm]);
  const bool finite = std::isfinite(norm) && std::isfinite(agreed[strategy::kLossSum]) &&
                      agreed[strategy::kNotFinite] == 0;
  results[strategy::kGradientNorm] = norm;
  results[strategy::kFinite] = finite ? 1.0 : 0.0;
  results[strategy::kClipScale] = options_.clip_norm > 0 && norm > options_.clip_norm
                                      ? options_.clip_norm / (norm + 1e-6)
                                      : 1.0;
}

namespace {

struct UpdateTerms {
  double learning_rate, scale;
  int64_t updates;
};

template <class T>
void update_range(const Instance& instance, const OptimizerOptions& options,
                  const UpdateTerms& terms, const Range& range, bool decay,
                  std::pair<int64_t, int> rank_and_threads) {
  const auto [rank, threads] = rank_and_threads;
  const size_t count = static_cast<size_t>(range.size());
  T* weights = at_range<T>(instance, operand_of(instance.writes, Role::kWeights), range, rank);
  const T* gradient =
      at_range<T>(instance, operand_of(instance.reads, Role::kGradient), range, rank);
  const auto state = [&](int64_t nth) {
    return std::span<T>(
        at_range<T>(instance, operand_of(instance.writes, Role::kState, nth), range, rank), count);
  };
  const double weight_decay = decay ? options.weight_decay : 0.0;
  if (options.kind == "adamw") {
    optim::AdamWUpdate update{terms.learning_rate, options.betas[0], options.betas[1], options.eps,
                              weight_decay,        terms.scale,      terms.updates + 1};
    optim::adamw_update({{weights, count}, {gradient, count}, state(0), state(1)}, update, threads);
  } else {
    optim::SgdUpdate update{terms.learning_rate, options.betas[0], weight_decay, terms.scale};
    optim::sgd_update({{weights, count}, {gradient, count}, state(0)}, update, threads);
  }
}

}  // namespace

void ModelExecutor::update(const Instance& instance) {
  const double* results = static_cast<const double*>(instance.read(Role::kScalars));
  if (results[strategy::kFinite] == 0.0) return;
  const UpdateTerms terms{step_.learning_rate, results[strategy::kClipScale], step_.updates};
  const Range held = updated_range(*instance.program, *instance.op, rank_);
  const UnitShape& unit = model_.shape().units[model_.shape().blocks[instance.block].unit];
  for (const Section& section : unit.sections) {
    const Range range{std::max(held.begin, section.begin), std::min(held.end, section.end)};
    if (range.size() <= 0) continue;
    const std::pair<int64_t, int> where{rank_, settings_.threads};
    if (settings_.dtype == Dtype::kFloat64)
      update_range<double>(instance, options_.optimizer, terms, range, section.weight_decay, where);
    else
      update_range<float>(instance, options_.optimizer, terms, range, section.weight_decay, where);
  }
}

}  // namespace strait::train
