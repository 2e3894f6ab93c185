#include "strait/base/random.h"

#include <bit>
#include <cmath>
#include <numbers>

namespace strait {

double RandomStream::normal(uint64_t counter) const {
  const double u = 1.0 - uniform(2 * counter);  // in (0, 1]
  const double v = uniform(2 * counter + 1);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

Permutation::Permutation(RandomStream stream, uint64_t size)
    : stream_(stream),
      size_(size),
      half_bits_(size < 2 ? 1 : (static_cast<int>(std::bit_width(size - 1)) + 1) / 2) {}

uint64_t Permutation::operator()(uint64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_;
    uint64_t right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (stream_.bits((round << 60) ^ right) & mask);
      left = right;
      right = next;
    }
    index = (left << half_bits_) | right;
  } while (index >= size_);
  return index;
}

}  // namespace strait
