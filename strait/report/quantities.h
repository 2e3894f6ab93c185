// Figures as a person reads them: SI prefixes, three or four significant digits, digit groups.
#pragma once

#include <cstdint>
#include <string>

namespace strait::report {

/// "812 B", "1.20 kB", "35.6 MB"; powers of 1000.
std::string bytes_text(double bytes);

/// By a format of fmt, such as "{:.4f}". "?" when not finite.
std::string number_text(const char* format, double value);

/// "12,345"; rounded to whole numbers. "?" when not finite.
std::string count_text(double count);

/// "312 us", "45.1 ms", "1.25 s", "3 min 20 s", "2 h 05 min". "?" when not finite.
std::string seconds_text(double seconds);

/// "41.2 %" of a share between 0 and 1. "?" when not finite.
std::string share_text(double share);

}  // namespace strait::report
