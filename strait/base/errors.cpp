#include "strait/base/errors.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <vector>

namespace strait {

namespace {

/// `row`: room for one number more than b has characters.
int64_t distance_in(std::span<int32_t> row, const std::string& a, const std::string& b) {
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int32_t diagonal = row[0], left = static_cast<int32_t>(i) + 1;
    row[0] = left;
    for (size_t j = 0; j < b.size(); ++j) {
      const int32_t substitute = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      left = std::min(substitute, std::min(left, diagonal) + 1);
      row[j + 1] = left;
    }
  }
  return row.back();
}

}  // namespace

int64_t edit_distance(const std::string& a, const std::string& b) {
  std::array<int32_t, 128> few;  // files of 100,000 unknown words are compared with all keys
  if (b.size() < few.size()) return distance_in(std::span(few).first(b.size() + 1), a, b);
  std::vector<int32_t> row(b.size() + 1);
  return distance_in(row, a, b);
}

}  // namespace strait
