#include "strait/report/quantities.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace strait::report {
namespace {

/// Three significant digits for values below 1000.
std::string three_digits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

}  // namespace

std::string bytes_text(double bytes) {
  if (!std::isfinite(bytes)) return "?";
  if (std::abs(bytes) < 999.5) return fmt::format("{:.0f} B", bytes);
  constexpr std::array kUnits = {"kB", "MB", "GB", "TB", "PB", "EB"};
  size_t unit = 0;
  bytes /= 1e3;
  while (std::abs(bytes) >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1e3;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(bytes), kUnits[unit]);
}

std::string number_text(const char* format, double value) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "?";
}

std::string count_text(double count) {
  if (!std::isfinite(count)) return "?";
  std::string digits = fmt::format("{:.0f}", std::abs(count));
  for (auto position = static_cast<int64_t>(digits.size()) - 3; position > 0; position -= 3) {
    digits.insert(static_cast<size_t>(position), 1, ',');
  }
  return fmt::format("{}{}", count < 0 && digits != "0" ? "-" : "", digits);
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 999.5e-6) return fmt::format("{} us", three_digits(seconds * 1e6));
  if (seconds < 999.5e-3) return fmt::format("{} ms", three_digits(seconds * 1e3));
  if (seconds < 59.95) return fmt::format("{} s", three_digits(seconds));
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  const int64_t minutes = (whole + 30) / 60;
  return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
}

std::string share_text(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : "?";
}

}  // namespace strait::report
