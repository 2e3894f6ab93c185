// What ran when on one rank: a ring of the last operations (flight record) and, for chosen steps, all of
// them (timeline). Real runs and simulations write the same records.
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

/// Spans of one rank. One thread. Cost of add: a store into a ring, and a push_back while recording.
class Recorder {
 public:
  static constexpr size_t kFlightSpans = 1000;

  /// Number of an interned name.
  int name(const std::string& text);
  const std::vector<std::string>& names() const { return names_; }
  /// From now on all spans are kept, or only the ring.
  void record_all(bool on) { recording_ = on; }
  bool recording() const { return recording_; }
  void add(int name, int stream, Interval time, int64_t step) {
    const Span span{name, stream, time, step};
    if (flight_.size() < kFlightSpans)
      flight_.push_back(span);
    else
      flight_[next_] = span;
    next_ = (next_ + 1) % kFlightSpans;
    if (recording_) spans_.push_back(span);
  }
  /// All spans that were recorded, in the order of add.
  const std::vector<Span>& spans() const { return spans_; }
  /// The last kFlightSpans spans, oldest first.
  std::vector<Span> flight() const;

 private:
  std::map<std::string, int> numbers_;
  std::vector<std::string> names_;
  std::vector<Span> flight_, spans_;
  size_t next_ = 0;
  bool recording_ = false;
};

/// Chrome trace JSON of all ranks (Perfetto opens it): one process per rank, one row per stream, times in
/// microseconds from the first span. `streams` names the rows.
std::string chrome_trace(const std::vector<const Recorder*>& ranks,
                         const std::vector<std::string>& streams);

}  // namespace strait::trace
