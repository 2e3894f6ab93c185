// Inputs of the optimizer tests: reproducible, of mixed sign and size.
#pragma once

#include <cstdint>
#include <vector>

namespace strait::optim {

/// `count` values in (-scale, scale), different for every `seed`.
template <class T>
std::vector<T> sample_values(int64_t count, uint64_t seed, double scale) {
  std::vector<T> values(count);
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (T& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<T>((static_cast<double>(state >> 11) / 4503599627370496.0 - 1.0) * scale);
  }
  return values;
}

/// Lengths around vectors and chunks: empty, below a vector, odd, one chunk and its neighbours,
/// several.
inline const std::vector<int64_t>& sample_lengths() {
  static const std::vector<int64_t> lengths = {
      0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 100, 1021, 16383, 16384, 16385, 50000, 131073};
  return lengths;
}

}  // namespace strait::optim
