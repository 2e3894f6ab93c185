#include "strait/topology/nearest.h"

#include <fmt/format.h>

#include <cstdlib>

namespace strait {

std::string nearest_multiples(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  return below <= 0 ? fmt::format("{}", step) : fmt::format("{} or {}", below, below + step);
}

int64_t nearest_divisor(int64_t of, int64_t near) {
  int64_t best = 1;
  const auto offer = [&](int64_t divisor) {
    const int64_t distance = std::abs(divisor - near), best_distance = std::abs(best - near);
    if (distance < best_distance || (distance == best_distance && divisor < best)) best = divisor;
  };
  for (int64_t divisor = 1; divisor * divisor <= of; ++divisor) {
    if (of % divisor != 0) continue;
    offer(divisor);
    offer(of / divisor);
  }
  return best;
}

}  // namespace strait
