#include "strait/report/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "strait/report/quantities.h"

namespace strait::report {
namespace {

/// "1.20 MB pair, 35.6 MB world", or "nothing" when no byte left a rank.
std::string sent_text(const StepMetrics& metrics) {
  std::string text;
  for (const LevelBytes& level : metrics.bytes_per_level) {
    if (level.bytes == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                        bytes_text(static_cast<double>(level.bytes)), level.level);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

std::string Progress::line(const StepMetrics& metrics) const {
  const std::string total = std::to_string(options_.total_steps);
  std::string text = fmt::format("step {:>{}}/{}", metrics.step, total.size(), total);
  text += "  loss " + number_text("{:.4f}", metrics.loss);
  text += "  gradient norm " + number_text("{:.3f}", metrics.gradient_norm);
  text += "  rate " + number_text("{:.2e}", metrics.learning_rate);
  text += fmt::format("  {} tokens/s", count_text(metrics.tokens_per_second));
  text += "  MFU " + share_text(metrics.model_flops_utilization);
  text += "  sent " + sent_text(metrics);
  text += "  exposed " + share_text(metrics.exposed_communication_seconds / metrics.seconds);
  text += "  step " + seconds_text(metrics.seconds);
  if (std::isfinite(metrics.predicted_seconds)) {
    text += fmt::format(" (predicted {}{})", seconds_text(metrics.predicted_seconds),
                        options_.prediction_note);
  }
  if (metrics.memory_bytes > 0) {
    text +=
        fmt::format("  memory {} allocated", bytes_text(static_cast<double>(metrics.memory_bytes)));
  }
  if (metrics.resident_bytes > 0)
    text += fmt::format(", {} resident", bytes_text(static_cast<double>(metrics.resident_bytes)));
  return text;
}

std::string Progress::bar(const StepMetrics& metrics, int64_t columns) const {
  const double share =
      std::clamp(static_cast<double>(metrics.step) /
                     static_cast<double>(std::max<int64_t>(options_.total_steps, 1)),
                 0.0, 1.0);
  const double left = static_cast<double>(options_.total_steps - metrics.step) * elapsed_seconds_ /
                      static_cast<double>(elapsed_steps_);
  const std::string tail =
      fmt::format(" {:3.0f} %  {}/{}  loss {}  {} left", std::floor(100 * share), metrics.step,
                  options_.total_steps, number_text("{:.3f}", metrics.loss), seconds_text(left));
  // One column stays free: a full last column wraps on some terminals.
  const int64_t room = columns - 1 - static_cast<int64_t>(tail.size()) - 2;
  if (room < 4) return tail.substr(1, static_cast<size_t>(std::max<int64_t>(columns - 1, 0)));
  const auto width = static_cast<size_t>(std::min<int64_t>(room, 40));
  const auto filled = static_cast<size_t>(share * static_cast<double>(width));
  return fmt::format("[{}{}]{}", std::string(filled, '#'), std::string(width - filled, '.'), tail);
}

StepMetrics Progress::interval_mean(const StepMetrics& last) const {
  if (timed_steps_ == 0) return last;
  StepMetrics mean = last;
  mean.seconds = seconds_ / static_cast<double>(timed_steps_);
  mean.exposed_communication_seconds = exposed_seconds_ / static_cast<double>(timed_steps_);
  mean.tokens_per_second = tokens_ / seconds_;
  mean.model_flops_utilization = utilization_seconds_ / seconds_;
  return mean;
}

std::string Progress::advance(const StepMetrics& metrics) {
  if (metrics.seconds > 0) {
    seconds_ += metrics.seconds;
    exposed_seconds_ += metrics.exposed_communication_seconds;
    tokens_ += metrics.tokens_per_second * metrics.seconds;
    utilization_seconds_ += metrics.model_flops_utilization * metrics.seconds;
    ++timed_steps_;
    elapsed_seconds_ += metrics.seconds;
    ++elapsed_steps_;
  }
  skipped_steps_ += metrics.skipped ? 1 : 0;
  std::string text;
  const bool first = metrics.step == options_.first_step + 1;
  const bool ends = options_.log_every_steps > 0 && metrics.step % options_.log_every_steps == 0;
  if (first || ends || metrics.step == options_.total_steps) {
    text += line(interval_mean(metrics)) + "\n";
    if (skipped_steps_ > 0)
      text += fmt::format("step {}  {} left out: loss or gradient not finite\n", metrics.step,
                          skipped_steps_ == 1 ? "1 step" : fmt::format("{} steps", skipped_steps_));
    skipped_steps_ = 0;
    seconds_ = exposed_seconds_ = tokens_ = utilization_seconds_ = 0;
    timed_steps_ = 0;
  }
  if (std::isfinite(metrics.validation_loss)) {
    text += fmt::format("step {}  validation loss {:.4f}\n", metrics.step, metrics.validation_loss);
  }
  return text;
}

}  // namespace strait::report
