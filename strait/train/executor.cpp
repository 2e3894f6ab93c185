#include "strait/train/executor.h"

#include <algorithm>
#include <cmath>

#include "strait/base/errors.h"
#include "strait/layout/layout.h"
#include "strait/model/tensor_blocks.h"

namespace strait::train {

using program::OpKind;
using program::Role;
using runtime::Bound;
using runtime::Instance;

namespace {

/// Elements `range` of the unit inside an operand that holds all of it or one part.
codec::Values at_range(const Instance& instance, const Bound& operand, const Range& range,
                       std::pair<int64_t, Dtype> rank_and_dtype) {
  const auto [rank, dtype] = rank_and_dtype;
  const program::ValueArray& array = instance.program->arrays[operand.array];
  const int64_t first = program::value_begin(*instance.program, array, rank);
  char* const data = static_cast<char*>(operand.data);
  return {data + (range.begin - first) * dtype_bytes(dtype), dtype, range.size()};
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
      return coding_.decode(instance, rank_, *arithmetic_);
    default:
      break;
  }
  if (instance.op->custom != "begin_step")
    throw InternalError("no executor for the op " +
                        program::print_op(*instance.program, *instance.op));
  begin_step(instance);
}

void ModelExecutor::begin_step(const Instance& instance) {
  std::array<double, strategy::kNumAgreed> agreed{};
  agreed[strategy::kStopRequests] = step_.stop_requested ? 1.0 : 0.0;
  arithmetic_->put(agreed.data(), instance.write(Role::kScalars), sizeof(agreed));
}

void ModelExecutor::load(const Instance& instance) {
  source_(instance.micro_batch, buffer_);
  const int64_t rows = static_cast<int64_t>(buffer_.inputs.size());
  const int64_t sequences = static_cast<int64_t>(buffer_.sequences.size());
  char* out = static_cast<char*>(instance.write(Role::kTokens));
  const auto put = [&](const auto& values, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(values[0]));
    arithmetic_->put(values.data(), out, bytes);
    out += bytes;
  };
  batch_ = {};
  batch_.batch = sequences;
  batch_.tokens = rows / sequences;
  batch_.sequences = buffer_.sequences.data();
  counted_ = std::ranges::count_if(buffer_.targets, [](int32_t target) { return target >= 0; });
  if (on_device_) {
    const int64_t vocabulary = model_.shape().vocabulary;
    const model::Batch here{batch_.batch, batch_.tokens, buffer_.inputs.data(),
                            buffer_.targets.data()};
    model::check_tokens(here, vocabulary);
    model::check_targets(here, vocabulary);
  }
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
  c.loss_sum = agreed + strategy::kLossSum;
  if (!backward) c.gradient = nullptr;
  model_.block(instance.block).forward_backward(c);
  arithmetic_->add(static_cast<double>(counted_), agreed + strategy::kLossCount);
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
  double* agreed = static_cast<double*>(instance.write(Role::kScalars));
  coding_.encode(instance, rank_, *arithmetic_, agreed ? agreed + strategy::kNotFinite : nullptr);
}

void ModelExecutor::squared_norm(const Instance& instance) {
  const Range range = counted_range(*instance.program, *instance.op, rank_);
  double* agreed = static_cast<double*>(instance.write(Role::kScalars));
  const Dtype dtype = strategy::types_of(settings_.dtype).state;
  const codec::Values gradient =
      at_range(instance, operand_of(instance.reads, Role::kGradient), range, {rank_, dtype});
  arithmetic_->add_squared_norm({gradient.data, dtype, range.size()},
                                agreed + strategy::kSquaredNorm);
}

void ModelExecutor::clip_factor(const Instance& instance) {
  std::array<double, strategy::kNumAgreed> agreed{};
  arithmetic_->get(instance.read(Role::kScalars), agreed.data(), sizeof(agreed));
  const double norm = std::sqrt(agreed[strategy::kSquaredNorm]) / step_.loss_scale;
  const bool finite = std::isfinite(norm) && std::isfinite(agreed[strategy::kLossSum]) &&
                      agreed[strategy::kNotFinite] == 0;
  results_[strategy::kGradientNorm] = norm;
  results_[strategy::kFinite] = finite ? 1.0 : 0.0;
  const double clip = options_.clip_norm > 0 && norm > options_.clip_norm
                          ? options_.clip_norm / (norm + 1e-6)
                          : 1.0;
  results_[strategy::kClipScale] = clip / step_.loss_scale;
  arithmetic_->put(results_.data(), instance.write(Role::kScalars), sizeof(results_));
}

void ModelExecutor::update(const Instance& instance) {
  if (results_[strategy::kFinite] == 0.0) return;
  const Range held = updated_range(*instance.program, *instance.op, rank_);
  const UnitShape& unit = model_.shape().units[model_.shape().blocks[instance.block].unit];
  const std::pair<int64_t, Dtype> where{rank_, strategy::types_of(settings_.dtype).state};
  for (const Section& section : unit.sections) {
    const Range range{std::max(held.begin, section.begin), std::min(held.end, section.end)};
    if (range.size() <= 0) continue;
    const codec::Values gradient =
        at_range(instance, operand_of(instance.reads, Role::kGradient), range, where);
    device::UpdateCall call{
        .options = options_.optimizer,
        .learning_rate = step_.learning_rate,
        .weight_decay = section.weight_decay ? options_.optimizer.weight_decay : 0.0,
        .gradient_scale = results_[strategy::kClipScale],
        .step = step_.updates + 1,
        .weights = at_range(instance, operand_of(instance.writes, Role::kWeights), range, where),
        .gradient = {gradient.data, gradient.dtype, gradient.elements}};
    const int64_t moments = options_.optimizer.kind == "adamw" ? 2 : 1;
    for (int64_t nth = 0; nth < moments; ++nth)
      call.states[nth] =
          at_range(instance, operand_of(instance.writes, Role::kState, nth), range, where).data;
    arithmetic_->update(call);
  }
}

}  // namespace strait::train
