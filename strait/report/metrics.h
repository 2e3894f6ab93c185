// What is known of each optimizer step, and its file: metrics.jsonl, one JSON object per line.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/json.h"

namespace strait::report {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Payload bytes that all ranks together sent over one level in one step. With local steps under
/// several processes those of rank 0 times the ranks: a sum would make replicas wait for each
/// other.
struct LevelBytes {
  std::string level;
  int64_t bytes = 0;
};

/// One step. Doubles that are not known are NaN and become null; validation_loss, loss_scale,
/// layer_settings and sequence_plan are written only when they are known, that is after an
/// evaluation, in fp16, after a choice and with sequence.plan; skipped only when it is true.
struct StepMetrics {
  int64_t step = 0;        // optimizer steps done, the first is 1
  double loss = kUnknown;  // nats per token, global mean of the step
  double gradient_norm = kUnknown;
  bool skipped = false;  // the weights stayed as they were: loss or gradient not finite
  double learning_rate = kUnknown;
  double loss_scale = kUnknown;  // of fp16
  double tokens_per_second = kUnknown;
  double model_flops_utilization = kUnknown;        // share of the peak, 0 to 1
  double seconds = kUnknown;                        // wall time of the step
  double compute_seconds = kUnknown;                // of it, computing (mean over ranks)
  double exposed_communication_seconds = kUnknown;  // of it, computing waited for links
  std::vector<LevelBytes> bytes_per_level;          // sent by all ranks; innermost first
  int64_t memory_bytes = 0;                         // peak of rank 0's allocator
  int64_t resident_bytes = 0;                       // peak of rank 0's process, 0 = unknown
  double predicted_seconds = kUnknown;              // fixed before the first step
  double validation_loss = kUnknown;                // nats per token
  std::vector<std::string> layer_settings;          // chosen after this step, by layer
  Json sequence_plan;                               // of the first batch of documents; null = none
};

/// Whether any of the steps tells a figure, such as &StepMetrics::loss.
bool any_known(const std::vector<StepMetrics>& steps, double StepMetrics::*figure);

/// The line of metrics.jsonl as a value, and back. Errors (UserError): missing or mistyped members,
/// a step below 1, negative bytes.
Json to_json(const StepMetrics& metrics);
StepMetrics metrics_from_json(const Json& value);

/// Appends lines to a metrics.jsonl. Each line is one write, so that a killed process leaves at
/// most the last line torn. Not thread-safe. Errors (InputOutputError): the file cannot be opened
/// or written.
class MetricsWriter {
 public:
  /// Goes on in `path` behind `resumed_step`: later lines and a torn last line are removed, a
  /// missing file is made. With resumed_step 0 an old file is emptied.
  MetricsWriter(std::string path, int64_t resumed_step);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  void append(const StepMetrics& metrics);
  /// To the last line, if it is of this step: it was evaluated after it was written. That line
  /// then.
  std::optional<StepMetrics> add_validation(int64_t step, double loss);

 private:
  std::string path_;
  int file_ = -1;
};

/// All steps of a metrics.jsonl in the order of the file; blank lines and a torn last line are
/// left out. Errors (UserError): no such file; a malformed line, or a step that is not later than
/// the one before, with its number.
std::vector<StepMetrics> read_metrics(const std::string& path);

/// Removes the lines behind `step` and a torn last line from a metrics.jsonl.
void truncate_metrics_after(const std::string& path, int64_t step);

}  // namespace strait::report
