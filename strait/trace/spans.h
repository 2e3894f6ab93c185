// What ran when on one rank in chosen steps (timeline). Real runs and simulations write the same
// spans.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace strait::trace {

struct Interval {
  double begin = 0, end = 0;  // seconds on one clock per run
};

/// One executed operation.
struct Span {
  int name = 0;    // Recorder::names()
  int stream = 0;  // stream of the program
  Interval time;
  int64_t step = 0;
};

/// Spans of one rank. One thread. Cost of add: a push_back while recording, nothing otherwise.
class Recorder {
 public:
  /// Number of an interned name.
  int name(const std::string& text);
  const std::vector<std::string>& names() const { return names_; }
  /// From now on spans are kept, or dropped.
  void record_all(bool on) { recording_ = on; }
  bool recording() const { return recording_; }
  void add(int name, int stream, Interval time, int64_t step) {
    if (recording_) spans_.push_back({name, stream, time, step});
  }
  /// All spans that were recorded, in the order of add.
  const std::vector<Span>& spans() const { return spans_; }

 private:
  std::map<std::string, int> numbers_;
  std::vector<std::string> names_;
  std::vector<Span> spans_;
  bool recording_ = false;
};

/// What is drawn of one rank: a row per stream.
struct Timeline {
  int64_t rank = 0;
  const Recorder* spans = nullptr;
  std::vector<std::string> streams;
};

/// Chrome trace JSON (Perfetto opens it): one process per rank, times in microseconds from the
/// first span of all.
std::string chrome_trace(const std::vector<Timeline>& ranks);

}  // namespace strait::trace
