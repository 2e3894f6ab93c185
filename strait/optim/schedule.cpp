#include "strait/optim/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "strait/base/errors.h"

namespace strait::optim {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& what) {
  ErrorPlace place;
  place.key = "optimizer." + key;
  throw UserError(fmt::format("optimizer.{}: {}", key, what), place);
}

void require_word(const std::string& key, const std::string& word,
                  const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), word) != choices.end()) return;
  refuse(key, fmt::format("unknown value \"{}\"; nearest valid choice: \"{}\" (of {})", word,
                          nearest_choice(word, choices), fmt::join(choices, ", ")));
}

void require_at_least_zero(const std::string& key, double value) {
  if (std::isfinite(value) && value >= 0.0) return;
  refuse(key,
         fmt::format("{} is not a finite number of at least 0; nearest valid choice: 0", value));
}

void require_at_least_zero(const std::string& key, int64_t value) {
  if (value >= 0) return;
  refuse(key, fmt::format("{} is negative; nearest valid choice: 0", value));
}

void require_beta(double beta, const char* which) {
  if (beta >= 0.0 && beta < 1.0) return;
  refuse("betas", fmt::format("the {} value, {}, is outside [0, 1); nearest valid choice: {}",
                              which, beta, beta < 0.0 ? "0" : "0.999"));
}

/// A value that has no effect is refused, unless it stands at its default.
template <class T>
void require_effect(const std::string& key, T value, T standard, const std::string& why) {
  if (value == standard) return;
  refuse(key, fmt::format("{} has no effect {}; nearest valid choice: {} (the default)", value, why,
                          standard));
}

void validate_effects(const OptimizerOptions& options) {
  const OptimizerOptions standard;
  if (options.kind == "sgd") {
    const std::string why = "with optimizer.kind = \"sgd\"";
    require_effect("eps", options.eps, standard.eps, why);
    if (options.betas[1] != standard.betas[1]) {
      refuse(
          "betas",
          fmt::format("the second value, {}, has no effect {}, which reads its momentum from the "
                      "first; nearest valid choice: [{}, {}]",
                      options.betas[1], why, options.betas[0], standard.betas[1]));
    }
  }
  if (options.schedule == "constant") {
    const std::string why = "with optimizer.schedule = \"constant\"";
    require_effect("minimum_learning_rate", options.minimum_learning_rate,
                   standard.minimum_learning_rate, why);
    require_effect("decay_steps", options.decay_steps, standard.decay_steps, why);
  } else if (options.minimum_learning_rate > options.learning_rate) {
    refuse(
        "minimum_learning_rate",
        fmt::format("{} is above optimizer.learning_rate = {}; nearest valid choice: {}",
                    options.minimum_learning_rate, options.learning_rate, options.learning_rate));
  }
}

/// Share of the way from learning_rate (1) to the minimum (0) at `progress` in [0, 1) of the decay.
double remaining_share(const std::string& schedule, double progress) {
  if (schedule == "linear") return 1.0 - progress;
  if (schedule == "cosine") return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  if (schedule == "wsd") {
    return progress < kStableShare ? 1.0 : (1.0 - progress) / (1.0 - kStableShare);
  }
  throw InternalError("learning_rate: unknown schedule \"" + schedule + "\"");
}

}  // namespace

double learning_rate(const OptimizerOptions& options, int64_t step, int64_t train_steps) {
  const int64_t warmup = options.warmup_steps;
  if (step < warmup) {
    return options.learning_rate * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  }
  if (options.schedule == "constant") return options.learning_rate;
  const int64_t end = options.decay_steps > 0 ? options.decay_steps : train_steps;
  // Also keeps the division below away from zero when the warm-up reaches the end.
  const double share =
      step >= end ? 0.0
                  : remaining_share(options.schedule, static_cast<double>(step - warmup) /
                                                          static_cast<double>(end - warmup));
  return options.minimum_learning_rate +
         share * (options.learning_rate - options.minimum_learning_rate);
}

void validate_optimizer(const OptimizerOptions& options) {
  require_word("kind", options.kind, optimizer_kinds());
  require_word("schedule", options.schedule, schedule_names());
  require_beta(options.betas[0], "first");
  require_beta(options.betas[1], "second");
  // Zero, which fp32 makes of less than this, would give 0/0 for every element whose gradient was
  // always zero.
  constexpr double kLeast = 1e-37;
  if (!(std::isfinite(options.eps) && options.eps >= kLeast))
    refuse("eps",
           fmt::format("{} is not a finite number from {} on; the nearest valid choice is {}",
                       options.eps, kLeast, options.eps > 0 ? kLeast : 1e-8));
  require_at_least_zero("weight_decay", options.weight_decay);
  require_at_least_zero("learning_rate", options.learning_rate);
  require_at_least_zero("minimum_learning_rate", options.minimum_learning_rate);
  require_at_least_zero("warmup_steps", options.warmup_steps);
  require_at_least_zero("decay_steps", options.decay_steps);
  validate_effects(options);
}

const std::vector<std::string>& optimizer_kinds() {
  static const std::vector<std::string> kinds = {"adamw", "sgd"};
  return kinds;
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"constant", "linear", "cosine", "wsd"};
  return names;
}

}  // namespace strait::optim
