// Where a command's lines go: stdout, or stderr when stdout is kept for JSON.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "strait/base/json.h"

namespace strait::cli {

/// The text with control characters but line breaks and tabs spelled out, so that a name from a
/// file or a model cannot drive a terminal.
std::string without_controls(std::string_view text);

/// Thread-safe, except partial().
class Output {
 public:
  static constexpr int64_t kColumns = 80;  // of a terminal that does not say

  /// `terminal`: a person watches the stream, so progress() shows.
  Output(std::ostream& stream, bool terminal) : stream_(stream), terminal_(terminal) {}

  bool is_terminal() const { return terminal_; }
  /// Columns of the terminal as it is now; 80 where nobody knows.
  int64_t columns() const { return columns_ ? columns_() : kColumns; }
  void set_columns(std::function<int64_t()> columns) { columns_ = std::move(columns); }
  /// Prints a line, without_controls, and flushes.
  void line(std::string_view text);
  /// On a terminal: shows `text` until the next line() or progress(); elsewhere nothing.
  void progress(std::string_view text);
  /// Result so far: members that the JSON report holds even if the command fails afterwards.
  Json& partial() { return partial_; }
  /// Ends the process with the exit code and the report of `failure`, without unwinding: for a
  /// command some of whose threads hang. Returns only when the output was made without a way to do
  /// that.
  void leave(const std::exception_ptr& failure, const Json& body) {
    if (leave_) leave_(failure, body);
  }
  void set_leave(std::function<void(const std::exception_ptr&, const Json&)> leave) {
    leave_ = std::move(leave);
  }
  /// False once the stream refused a write (disk full, closed).
  bool good() const;

 private:
  void erase_progress();

  std::ostream& stream_;
  bool terminal_;
  bool showing_progress_ = false;
  mutable std::mutex mutex_;
  Json partial_ = Json::object();
  std::function<void(const std::exception_ptr&, const Json&)> leave_;
  std::function<int64_t()> columns_;
};

}  // namespace strait::cli
