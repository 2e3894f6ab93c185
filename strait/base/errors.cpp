#include "strait/base/errors.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

namespace strait {

namespace {

/// `row`: room for one number more than b has characters.
int64_t distance_in(std::span<int32_t> row, std::string_view a, std::string_view b, int64_t limit) {
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int32_t diagonal = row[0], left = static_cast<int32_t>(i) + 1, least = left;
    row[0] = left;
    for (size_t j = 0; j < b.size(); ++j) {
      const int32_t substitute = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      left = std::min(substitute, std::min(left, diagonal) + 1);
      row[j + 1] = left;
      least = std::min(least, left);
    }
    if (least >= limit) return least;  // rows never fall below the least of the row before
  }
  return row.back();
}

}  // namespace

int64_t edit_distance(std::string_view a, std::string_view b, int64_t limit) {
  const auto different = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  a.remove_prefix(static_cast<size_t>(different));  // costs nothing in one of the shortest ways
  b.remove_prefix(static_cast<size_t>(different));
  const auto lengths = static_cast<int64_t>(a.size()) - static_cast<int64_t>(b.size());
  if (std::abs(lengths) >= limit) return std::abs(lengths);
  std::array<int32_t, 128> few;  // files of 100,000 unknown words are compared with all keys
  if (b.size() < few.size()) return distance_in(std::span(few).first(b.size() + 1), a, b, limit);
  std::vector<int32_t> row(b.size() + 1);
  return distance_in(row, a, b, limit);
}

}  // namespace strait
