// Event files: checksum against published vectors, and a reader written here, without the writer's
// code.
#include "strait/report/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>

#include "strait/base/errors.h"
#include "strait/base/file.h"

namespace strait::report {
namespace {

/// CRC-32C bit by bit, without a table, then unmasked by the record format's inverse.
uint32_t plain_crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool differs = ((crc ^ (static_cast<uint8_t>(byte) >> bit)) & 1) != 0;
      crc >>= 1;
      if (differs) crc ^= 0x82f63b78u;
    }
  }
  return ~crc;
}

uint32_t unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  return (rotated >> 17) | (rotated << 15);
}

struct Event {
  double wall_seconds = 0;
  int64_t step = 0;
  std::string file_version;
  int session_status = 0;  // SessionLog.START is 1
  std::map<std::string, float> scalars;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  bool done() const { return bytes_.empty(); }

  std::string_view take(size_t size) {
    if (bytes_.size() < size) throw std::runtime_error("ends too early");
    const std::string_view part = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return part;
  }
  template <class T>
  T value() {
    T result;
    std::memcpy(&result, take(sizeof(T)).data(), sizeof(T));
    return result;
  }
  uint64_t varint() {
    uint64_t result = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = value<uint8_t>();
      result |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return result;
    }
  }
  std::string_view counted() { return take(varint()); }

 private:
  std::string_view bytes_;
};

void read_scalar(std::string_view bytes, Event* event) {
  std::string tag;
  for (Reader reader(bytes); !reader.done();) {
    const uint64_t field = reader.varint();
    if (field == 0x0a) {
      tag = reader.counted();
    } else if (field == 0x15) {
      event->scalars[tag] = reader.value<float>();
    } else {
      throw std::runtime_error("unexpected field of a scalar");
    }
  }
}

Event read_event(std::string_view bytes) {
  Event event;
  for (Reader reader(bytes); !reader.done();) {
    const uint64_t field = reader.varint();
    if (field == 0x09) {
      event.wall_seconds = reader.value<double>();
    } else if (field == 0x10) {
      event.step = static_cast<int64_t>(reader.varint());
    } else if (field == 0x1a) {
      event.file_version = reader.counted();
    } else if (field == 0x3a) {
      Reader session(reader.counted());
      if (session.varint() != 0x08) throw std::runtime_error("unexpected field of a session");
      event.session_status = static_cast<int>(session.varint());
    } else if (field == 0x2a) {
      for (Reader summary(reader.counted()); !summary.done();) {
        if (summary.varint() != 0x0a) throw std::runtime_error("unexpected field of a summary");
        read_scalar(summary.counted(), &event);
      }
    } else {
      throw std::runtime_error("unexpected field of an event");
    }
  }
  return event;
}

std::vector<Event> read_events(const std::string& bytes) {
  std::vector<Event> events;
  for (Reader reader(bytes); !reader.done();) {
    const std::string_view header = reader.take(8);
    EXPECT_EQ(unmask(reader.value<uint32_t>()), plain_crc32c(header));
    uint64_t length = 0;
    std::memcpy(&length, header.data(), 8);
    const std::string_view payload = reader.take(length);
    EXPECT_EQ(unmask(reader.value<uint32_t>()), plain_crc32c(payload));
    events.push_back(read_event(payload));
  }
  return events;
}

TEST(TensorboardTest, ChecksumAgainstPublishedVectors) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(unmask(masked_crc32c(std::string(32, '\0'))), 0x8a9136aau);
  EXPECT_EQ(unmask(masked_crc32c(std::string(32, '\xff'))), 0x62a8ab43u);
  EXPECT_EQ(unmask(masked_crc32c("123456789")), 0xe3069283u);
  EXPECT_EQ(unmask(masked_crc32c("")), 0u);
}

TEST(TensorboardTest, ReadsBackWhatWasWritten) {
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / ("events_" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  StepMetrics metrics;
  metrics.step = 300;  // two bytes as a varint
  metrics.loss = 5.25;
  metrics.gradient_norm = 0.5;
  metrics.tokens_per_second = 4096;
  metrics.seconds = 0.25;
  metrics.exposed_communication_seconds = 0.0625;
  metrics.bytes_per_level = {{"pair", 1000}, {"world", 35600000}};
  metrics.memory_bytes = 181000000;
  StepMetrics evaluated = metrics;
  evaluated.step = 1;
  evaluated.validation_loss = 4.5;
  std::string path;
  {
    TensorboardWriter writer(folder, 1.75e9, 0);
    path = writer.path();
    writer.append(evaluated, 1750000001.5);
    writer.append(metrics, 1750000002.5);
  }
  EXPECT_THAT(path, ::testing::EndsWith("/events.out.tfevents.1750000000.0"));
  const std::vector<Event> events = read_events(read_file(path));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[0].wall_seconds, 1.75e9);
  EXPECT_EQ(events[2].step, 1);
  EXPECT_EQ(events[2].wall_seconds, 1750000001.5);
  EXPECT_EQ(events[3].step, 300);
  const std::map<std::string, float> expected = {{"train/loss", 5.25f},
                                                 {"train/gradient_norm", 0.5f},
                                                 {"speed/tokens_per_second", 4096.0f},
                                                 {"speed/seconds", 0.25f},
                                                 {"speed/exposed_communication_share", 0.25f},
                                                 {"bytes/pair", 1000.0f},
                                                 {"bytes/world", 35600000.0f},
                                                 {"memory/bytes", 181000000.0f}};
  EXPECT_EQ(events[3].scalars, expected);  // what is not known is not written
  EXPECT_EQ(events[2].scalars.at("validation/loss"), 4.5f);
  EXPECT_EQ(events[2].scalars.size(), expected.size() + 1);
  std::filesystem::remove_all(folder);
}

// TensorBoard forgets, at the start of a session, the steps from its own on.
TEST(TensorboardTest, AResumedRunTakesBackTheStepsAfterItsCheckpoint) {
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / ("resumed_" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  std::map<int64_t, double> kept;  // loss by step, as TensorBoard reads the files in order
  StepMetrics metrics;
  for (const int64_t first_step : {0, 4}) {
    TensorboardWriter writer(folder, 1.75e9 + static_cast<double>(first_step), first_step);
    for (metrics.step = first_step + 1; metrics.step <= 8 - first_step / 2; ++metrics.step) {
      metrics.loss = static_cast<double>(first_step);
      writer.append(metrics, 1.75e9);
    }
    for (const Event& event : read_events(read_file(writer.path()))) {
      if (event.session_status == 1) kept.erase(kept.lower_bound(event.step), kept.end());
      if (!event.scalars.empty()) kept[event.step] = event.scalars.at("train/loss");
    }
  }
  EXPECT_EQ(kept, (std::map<int64_t, double>{{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 4}, {6, 4}}));
  std::filesystem::remove_all(folder);
}

TEST(TensorboardTest, FolderThatCannotBeMade) {
  EXPECT_THROW(TensorboardWriter("/dev/null/events", 0, 0), InputOutputError);
}

}  // namespace
}  // namespace strait::report
