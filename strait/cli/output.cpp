#include "strait/cli/output.h"

#include <fmt/format.h>

#include <cstdint>

namespace strait::cli {

void Output::erase_progress() {
  if (showing_progress_) stream_ << "\r\x1b[K";  // back to the first column, erase to the end
  showing_progress_ = false;
}

void Output::line(std::string_view text) {
  const std::lock_guard lock(mutex_);
  erase_progress();
  stream_ << without_controls(text) << '\n' << std::flush;
}

std::string without_controls(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<uint8_t>(text[at]);
    const bool second_set =  // U+0080 to U+009F in UTF-8
        byte == 0xc2 && at + 1 < text.size() && static_cast<uint8_t>(text[at + 1]) < 0xa0;
    const bool line_end = byte == '\n' || text.substr(at).starts_with("\r\n");
    if (second_set)
      plain += fmt::format("\\u{:04x}", static_cast<uint8_t>(text[++at]));
    else if ((byte < 0x20 && !line_end && byte != '\t') || byte == 0x7f)
      plain += fmt::format("\\x{:02x}", byte);
    else
      plain += text[at];
  }
  return plain;
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
