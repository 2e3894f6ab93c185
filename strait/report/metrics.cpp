#include "strait/report/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <string_view>
#include <utility>

#include "strait/base/errors.h"
#include "strait/base/file.h"

namespace strait::report {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path) {
  ErrorPlace place;
  place.file = path;
  place.operation = what;
  throw InputOutputError(fmt::format("cannot {} {}: {}", what, path, errno_text(errno)), place);
}

double number_or_unknown(const Json& value, const char* key) {
  const Json* member = value.find(key);
  return member == nullptr || member->is_null() ? kUnknown : member->as_number();
}

int64_t byte_count(const Json& value, const char* key) {
  const int64_t bytes = value.at(key).as_integer();
  if (bytes < 0) throw UserError(fmt::format("{} is {}, less than 0", key, bytes));
  return bytes;
}

/// Parses one line, of a later step than the one before; the error names file and line.
StepMetrics parse_line(std::string_view line, const std::string& path, int64_t number,
                       int64_t step_before) {
  try {
    StepMetrics metrics = metrics_from_json(Json::parse(line, path));
    if (metrics.step <= step_before)
      throw UserError(
          fmt::format("step {} follows step {}; steps rise", metrics.step, step_before));
    return metrics;
  } catch (const UserError& error) {
    ErrorPlace place;
    place.file = path;
    place.line = number;
    throw UserError(fmt::format("{}:{}: not a line of metrics: {}", path, number, error.what()),
                    place);
  }
}

/// Calls visit(metrics, offset behind the line) for each whole line that is not blank until it
/// returns false.
template <class Visit>
void for_each_line(const std::string& text, const std::string& path, Visit visit) {
  int64_t number = 0, step = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) return;  // torn by the end of a process
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    StepMetrics metrics = parse_line(line, path, number, step);
    step = metrics.step;
    if (!visit(std::move(metrics), begin)) return;
  }
}

}  // namespace

bool any_known(const std::vector<StepMetrics>& steps, double StepMetrics::*figure) {
  return std::any_of(steps.begin(), steps.end(), [figure](const StepMetrics& metrics) {
    return std::isfinite(metrics.*figure);
  });
}

Json to_json(const StepMetrics& metrics) {
  Json levels = Json::array();
  for (const LevelBytes& level : metrics.bytes_per_level) {
    levels.push_back(Json::object({{"level", level.level}, {"bytes", level.bytes}}));
  }
  Json value = Json::object({
      {"step", metrics.step},
      {"loss", metrics.loss},
      {"gradient_norm", metrics.gradient_norm},
      {"learning_rate", metrics.learning_rate},
      {"tokens_per_second", metrics.tokens_per_second},
      {"model_flops_utilization", metrics.model_flops_utilization},
      {"seconds", metrics.seconds},
      {"compute_seconds", metrics.compute_seconds},
      {"exposed_communication_seconds", metrics.exposed_communication_seconds},
      {"bytes_per_level", std::move(levels)},
      {"memory_bytes", metrics.memory_bytes},
      {"resident_bytes", metrics.resident_bytes},
      {"predicted_seconds", metrics.predicted_seconds},
  });
  if (metrics.skipped) value["skipped"] = true;
  if (!std::isnan(metrics.loss_scale)) value["loss_scale"] = metrics.loss_scale;
  if (!std::isnan(metrics.validation_loss)) value["validation_loss"] = metrics.validation_loss;
  if (!metrics.layer_settings.empty()) {
    Json settings = Json::array();
    for (const std::string& setting : metrics.layer_settings) settings.push_back(setting);
    value["layer_settings"] = std::move(settings);
  }
  if (!metrics.sequence_plan.is_null()) value["sequence_plan"] = metrics.sequence_plan;
  return value;
}

StepMetrics metrics_from_json(const Json& value) {
  StepMetrics metrics;
  metrics.step = value.at("step").as_integer();
  if (metrics.step < 1) throw UserError(fmt::format("step is {}; the first is 1", metrics.step));
  metrics.loss = number_or_unknown(value, "loss");
  metrics.gradient_norm = number_or_unknown(value, "gradient_norm");
  if (const Json* skipped = value.find("skipped")) metrics.skipped = skipped->as_bool();
  metrics.learning_rate = number_or_unknown(value, "learning_rate");
  metrics.loss_scale = number_or_unknown(value, "loss_scale");
  metrics.tokens_per_second = number_or_unknown(value, "tokens_per_second");
  metrics.model_flops_utilization = number_or_unknown(value, "model_flops_utilization");
  metrics.seconds = number_or_unknown(value, "seconds");
  metrics.compute_seconds = number_or_unknown(value, "compute_seconds");
  metrics.exposed_communication_seconds = number_or_unknown(value, "exposed_communication_seconds");
  for (const Json& level : value.at("bytes_per_level").as_array()) {
    metrics.bytes_per_level.push_back({level.at("level").as_string(), byte_count(level, "bytes")});
  }
  metrics.memory_bytes = byte_count(value, "memory_bytes");
  if (value.find("resident_bytes") != nullptr)
    metrics.resident_bytes = byte_count(value, "resident_bytes");
  metrics.predicted_seconds = number_or_unknown(value, "predicted_seconds");
  metrics.validation_loss = number_or_unknown(value, "validation_loss");
  if (const Json* settings = value.find("layer_settings"))
    for (const Json& setting : settings->as_array())
      metrics.layer_settings.push_back(setting.as_string());
  if (const Json* plan = value.find("sequence_plan")) metrics.sequence_plan = *plan;
  return metrics;
}

MetricsWriter::MetricsWriter(std::string path, int64_t resumed_step) : path_(std::move(path)) {
  const int keep = resumed_step > 0 ? 0 : O_TRUNC;
  // O_NONBLOCK: a FIFO without a reader would block here for ever.
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | keep;
  file_ = ::open(path_.c_str(), flags, 0644);
  if (file_ < 0) fail("open", path_);
  try {
    struct stat status {};
    if (::fstat(file_, &status) == 0 && !S_ISREG(status.st_mode))
      throw UserError(fmt::format("{} is a {}, not a file", path_, file_kind(status.st_mode)));
    if (resumed_step > 0) truncate_metrics_after(path_, resumed_step);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

MetricsWriter::~MetricsWriter() { ::close(file_); }

void MetricsWriter::append(const StepMetrics& metrics) {
  const std::string line = to_json(metrics).dump() + "\n";
  for (size_t written = 0; written < line.size();) {
    const ssize_t count = ::write(file_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", path_);
    written += static_cast<size_t>(count);
  }
}

std::optional<StepMetrics> MetricsWriter::add_validation(int64_t step, double loss) {
  const std::vector<StepMetrics> all = read_metrics(path_);
  if (all.empty() || all.back().step != step) return std::nullopt;
  StepMetrics metrics = all.back();
  metrics.validation_loss = loss;
  truncate_metrics_after(path_, step - 1);
  append(metrics);
  return metrics;
}

std::vector<StepMetrics> read_metrics(const std::string& path) {
  std::vector<StepMetrics> all;
  for_each_line(read_file(path), path, [&](StepMetrics metrics, size_t) {
    all.push_back(std::move(metrics));
    return true;
  });
  return all;
}

void truncate_metrics_after(const std::string& path, int64_t step) {
  const std::string text = read_file(path);
  size_t kept = 0;
  for_each_line(text, path, [&](const StepMetrics& metrics, size_t end) {
    if (metrics.step > step) return false;
    kept = end;
    return true;
  });
  if (kept < text.size() && ::truncate(path.c_str(), static_cast<off_t>(kept)) != 0) {
    fail("truncate", path);
  }
}

}  // namespace strait::report
