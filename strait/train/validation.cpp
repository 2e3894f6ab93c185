#include "strait/train/validation.h"

#include <algorithm>

#include "strait/strategy/finish/step_values.h"

namespace strait::train {

int64_t evaluated_windows(const ValidationWindows& validation, const EvaluationOptions& options,
                          int64_t global_batch_size) {
  const int64_t all = validation.windows();
  return options.batches == 0 ? all : std::min(all, options.batches * global_batch_size);
}

void fill_windows(const ValidationWindows& validation, const ValidationPlan& plan, int64_t first,
                  BatchBuffer& buffer) {
  validation.fill(first, plan.micro_batch, buffer);
  const int64_t inside = std::clamp<int64_t>(plan.windows - first, 0, plan.micro_batch);
  std::fill(buffer.targets.begin() + inside * validation.context(), buffer.targets.end(),
            kIgnoredTarget);
}

/// In place: no row moves behind where it was.
void take_share(const sequence::Share& share, BatchBuffer& buffer) {
  if (share.members == 1) return;
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
    // A part of the validation is no validation.
    if (agreed[strategy::kStopRequests] > 0 && first + plan.stride() < plan.windows)
      return std::nullopt;
  }
  return count > 0 ? std::optional(loss_sum / count) : std::nullopt;
}

}  // namespace strait::train
