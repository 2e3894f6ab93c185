#include "strait/report/tensorboard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "strait/base/errors.h"
#include "strait/base/file.h"

namespace strait::report {
namespace {

// Fields of the messages, as (number << 3) | wire type; 0 varint, 1 eight bytes, 2 counted, 5 four
// bytes.
constexpr char kEventWallTime = (1 << 3) | 1, kEventStep = (2 << 3) | 0;
constexpr char kEventFileVersion = (3 << 3) | 2, kEventSummary = (5 << 3) | 2;
constexpr char kEventSessionLog = (7 << 3) | 2;
constexpr char kStart[] = {(1 << 3) | 0, 1};  // SessionLog: status = START
constexpr char kSummaryValue = (1 << 3) | 2, kValueTag = (1 << 3) | 2, kValueSimple = (2 << 3) | 5;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ (remainder & 1 ? 0x82f63b78u : 0u);
    }
    table[byte] = remainder;
  }
  return table;
}

/// Little-endian bytes of a value; all supported machines are little-endian.
template <class T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  while (value >= 0x80) {
    bytes += static_cast<char>(0x80 | (value & 0x7f));
    value >>= 7;
  }
  bytes += static_cast<char>(value);
  return bytes;
}

std::string counted(char field, std::string_view content) {
  std::string bytes(1, field);
  bytes += varint(content.size());
  bytes += content;
  return bytes;
}

std::string event_start(double wall_seconds) { return kEventWallTime + raw(wall_seconds); }

std::string event_step(int64_t step) { return kEventStep + varint(static_cast<uint64_t>(step)); }

/// Adds one scalar to a summary unless it is unknown.
void add_scalar(const std::string& tag, double value, std::string* summary) {
  if (std::isnan(value)) return;
  std::string scalar = counted(kValueTag, tag);
  scalar += kValueSimple;
  scalar += raw(static_cast<float>(value));
  *summary += counted(kSummaryValue, scalar);
}

std::string summary_of(const StepMetrics& metrics) {
  std::string summary;
  add_scalar("train/loss", metrics.loss, &summary);
  add_scalar("train/gradient_norm", metrics.gradient_norm, &summary);
  add_scalar("train/learning_rate", metrics.learning_rate, &summary);
  add_scalar("train/loss_scale", metrics.loss_scale, &summary);
  add_scalar("speed/tokens_per_second", metrics.tokens_per_second, &summary);
  add_scalar("speed/model_flops_utilization", metrics.model_flops_utilization, &summary);
  add_scalar("speed/seconds", metrics.seconds, &summary);
  add_scalar("speed/exposed_communication_share",
             metrics.exposed_communication_seconds / metrics.seconds, &summary);
  for (const LevelBytes& level : metrics.bytes_per_level) {
    add_scalar("bytes/" + level.level, static_cast<double>(level.bytes), &summary);
  }
  add_scalar("memory/bytes", static_cast<double>(metrics.memory_bytes), &summary);
  add_scalar("validation/loss", metrics.validation_loss, &summary);
  return summary;
}

[[noreturn]] void fail(const char* what, const std::string& path) {
  ErrorPlace place;
  place.file = path;
  place.operation = what;
  throw InputOutputError(fmt::format("cannot {} {}: {}", what, path, errno_text(errno)), place);
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  uint32_t crc = ~0u;
  for (const char byte : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string event_record(std::string_view payload) {
  const std::string length = raw(static_cast<uint64_t>(payload.size()));
  std::string record = length + raw(masked_crc32c(length));
  record += payload;
  record += raw(masked_crc32c(payload));
  return record;
}

TensorboardWriter::TensorboardWriter(const std::string& folder, double wall_seconds,
                                     int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  path_ =
      fmt::format("{}/events.out.tfevents.{:.0f}.{}", folder, std::floor(wall_seconds), first_step);
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) fail("open", path_);
  try {
    write(event_record(event_start(wall_seconds) + counted(kEventFileVersion, "brain.Event:2")));
    write(event_record(event_start(wall_seconds) + event_step(first_step + 1) +
                       counted(kEventSessionLog, std::string_view(kStart, sizeof kStart))));
  } catch (...) {
    ::close(file_);
    throw;
  }
}

TensorboardWriter::~TensorboardWriter() { ::close(file_); }

void TensorboardWriter::append(const StepMetrics& metrics, double wall_seconds) {
  std::string event = event_start(wall_seconds);
  event += event_step(metrics.step);
  event += counted(kEventSummary, summary_of(metrics));
  write(event_record(event));
}

void TensorboardWriter::write(const std::string& record) {
  for (size_t written = 0; written < record.size();) {
    const ssize_t count = ::write(file_, record.data() + written, record.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", path_);
    written += static_cast<size_t>(count);
  }
}

}  // namespace strait::report
