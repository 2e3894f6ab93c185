// The valid numbers around a wrong one, for messages.
#pragma once

#include <cstdint>
#include <string>

namespace strait {

/// "8 or 16": the positive multiples of `step` around `value`. Precondition: step >= 1.
std::string nearest_multiples(int64_t value, int64_t step);

/// The divisor of `of` that is nearest to `near`; the smaller of two. Cost: O(sqrt(of)).
int64_t nearest_divisor(int64_t of, int64_t near);

}  // namespace strait
