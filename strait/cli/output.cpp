#include "strait/cli/output.h"

namespace strait::cli {

void Output::erase_progress() {
  if (showing_progress_) stream_ << "\r\x1b[K";  // back to the first column, erase to the end
  showing_progress_ = false;
}

void Output::line(std::string_view text) {
  const std::lock_guard lock(mutex_);
  erase_progress();
  stream_ << text << '\n' << std::flush;
}

void Output::progress(std::string_view text) {
  if (!terminal_) return;
  const std::lock_guard lock(mutex_);
  erase_progress();
  stream_ << text << std::flush;
  showing_progress_ = !text.empty();
}

bool Output::good() const {
  const std::lock_guard lock(mutex_);
  return stream_.good();
}

}  // namespace strait::cli
