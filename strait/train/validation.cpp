#include "strait/train/validation.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "strait/strategy/finish/step_values.h"

namespace strait::train {

int64_t windows_of_batch(const Run& run) {
  const int64_t context = run.model.shape.context, tokens = run.train.global_batch_tokens;
  return tokens > 0 ? (tokens + context - 1) / context : run.train.global_batch_size;
}

int64_t evaluated_windows(const ValidationWindows& validation, const Run& run) {
  const int64_t all = validation.windows(), batches = run.evaluation.batches;
  return batches == 0 ? all : std::min(all, batches * windows_of_batch(run));
}

namespace {

/// Windows, each as a document of its own, one behind the other in rows that end in padding.
void join_rows(const ValidationPlan& plan, int64_t context, BatchBuffer& buffer) {
  const auto size = static_cast<size_t>(plan.micro_batch * plan.row_tokens);
  BatchBuffer rows{std::vector<int32_t>(size, 0),
                   std::vector<int32_t>(size, kIgnoredTarget),
                   std::vector<int32_t>(size),
                   {}};
  for (int64_t row = 0; row < plan.micro_batch; ++row) {
    rows.sequences.push_back(buffer.sequences[static_cast<size_t>(row * plan.row_windows)]);
    for (int64_t token = 0; token < plan.row_tokens; ++token) {
      const auto to = static_cast<size_t>(row * plan.row_tokens + token);
      const int64_t window = token / context;
      rows.document_starts[to] = static_cast<int32_t>(token);
      if (window >= plan.row_windows) continue;
      const auto from = static_cast<size_t>(row * plan.row_windows * context + token);
      rows.inputs[to] = buffer.inputs[from];
      rows.targets[to] = buffer.targets[from];
      rows.document_starts[to] = static_cast<int32_t>(window * context);
      if (!buffer.document_starts.empty()) rows.document_starts[to] += buffer.document_starts[from];
    }
  }
  buffer = std::move(rows);
}

}  // namespace

void fill_windows(const ValidationWindows& validation, const ValidationPlan& plan, int64_t first,
                  BatchBuffer& buffer) {
  const int64_t count = plan.windows_of_rank();
  validation.fill(first, count, buffer);
  const int64_t inside = std::clamp<int64_t>(plan.windows - first, 0, count);
  std::fill(buffer.targets.begin() + inside * validation.context(), buffer.targets.end(),
            kIgnoredTarget);
  if (plan.row_tokens > 0) join_rows(plan, validation.context(), buffer);
}

/// In place: no row moves behind where it was.
void take_share(const sequence::Share& share, BatchBuffer& buffer) {
  if (share.members == 1) return;
  buffer.row_starts = buffer.document_starts;
  const auto sequences = static_cast<int64_t>(buffer.sequences.size());
  for (auto* words : {&buffer.inputs, &buffer.targets, &buffer.document_starts}) {
    if (words->empty()) continue;
    for (int64_t sequence = 0; sequence < sequences; ++sequence)
      for (int64_t row = 0; row < share.tokens; ++row)
        (*words)[static_cast<size_t>(sequence * share.tokens + row)] =
            (*words)[static_cast<size_t>(sequence * share.length() + share.position(row))];
    words->resize(static_cast<size_t>(sequences * share.tokens));
  }
}

std::optional<double> validation_loss(const ValidationPlan& plan, runtime::State& state,
                                      const std::function<void(int64_t first)>& run) {
  double loss_sum = 0, count = 0;
  for (int64_t first = 0; first < plan.windows; first += plan.stride()) {
    run(first);
    const auto agreed = state.read<double, strategy::kNumAgreed>("agreed");
    loss_sum += agreed[strategy::kLossSum];
    count += agreed[strategy::kLossCount];
    // What was sent between stages as 0 in place of no number.
    if (agreed[strategy::kNotFinite] > 0) loss_sum = std::nan("");
    // A part of the validation is no validation.
    if (agreed[strategy::kStopRequests] > 0 && first + plan.stride() < plan.windows)
      return std::nullopt;
  }
  return count > 0 ? std::optional(loss_sum / count) : std::nullopt;
}

}  // namespace strait::train
