// Where a command's lines go: stdout, or stderr when stdout is kept for JSON.
#pragma once

#include <mutex>
#include <ostream>
#include <string>
#include <string_view>

#include "strait/base/json.h"

namespace strait::cli {

/// Thread-safe, except partial().
class Output {
 public:
  /// `terminal`: a person watches the stream, so progress() shows.
  Output(std::ostream& stream, bool terminal) : stream_(stream), terminal_(terminal) {}

  bool is_terminal() const { return terminal_; }
  /// Prints a line and flushes.
  void line(std::string_view text);
  /// On a terminal: shows `text` until the next line() or progress(); elsewhere nothing.
  void progress(std::string_view text);
  /// Result so far: members that the JSON report holds even if the command fails afterwards.
  Json& partial() { return partial_; }
  /// False once the stream refused a write (disk full, closed).
  bool good() const;

 private:
  void erase_progress();

  std::ostream& stream_;
  bool terminal_;
  bool showing_progress_ = false;
  mutable std::mutex mutex_;
  Json partial_ = Json::object();
};

}  // namespace strait::cli
