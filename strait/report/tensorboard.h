// TensorBoard event files, written without TensorBoard: records (length, checksum, payload,
// checksum) whose payloads are Event messages in protocol buffer encoding with scalar summaries.
// Format: tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "strait/report/metrics.h"

namespace strait::report {

/// CRC-32C (Castagnoli) of bytes, rotated and offset as the record format wants it.
uint32_t masked_crc32c(std::string_view bytes);

/// One record around a payload.
std::string event_record(std::string_view payload);

/// Appends events to one new file per process, so that a resumed run goes on in a second file;
/// TensorBoard reads all files of a folder. Not thread-safe. Errors (InputOutputError): the file
/// cannot be written.
class TensorboardWriter {
 public:
  /// Makes `folder`/events.out.tfevents.<seconds>.<first_step>; `wall_seconds` since 1970,
  /// `first_step` steps done before this process. TensorBoard drops what earlier files tell of
  /// later steps.
  TensorboardWriter(const std::string& folder, double wall_seconds, int64_t first_step);
  ~TensorboardWriter();
  TensorboardWriter(const TensorboardWriter&) = delete;
  TensorboardWriter& operator=(const TensorboardWriter&) = delete;

  /// The known figures of a step as the scalars train/{loss, gradient_norm, learning_rate},
  /// speed/{tokens_per_second, model_flops_utilization, seconds, exposed_communication_share},
  /// bytes/LEVEL, memory/bytes and validation/loss. One write per step.
  void append(const StepMetrics& metrics, double wall_seconds);

  const std::string& path() const { return path_; }

 private:
  void write(const std::string& record);

  std::string path_;
  int file_ = -1;
};

}  // namespace strait::report
