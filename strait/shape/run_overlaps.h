// Where two sets of element runs hold the same elements.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/shape/element_runs.h"

namespace strait {

/// A single run: elements [begin, end), packed from position `packed` on.
struct Stretch {
  int64_t begin = 0, end = 0;
  int64_t packed = 0;
};

/// Every single run, in the order of the elements. Cost: O(n log n) for n single runs.
std::vector<Stretch> stretches_of(const ElementRuns& runs);

/// `length` elements that both hold, from these packed positions on.
struct Overlap {
  int64_t a = 0, b = 0;
  int64_t length = 0;
};

/// All of them, in the order of the elements, joined where both sides go on. Neither side holds an
/// element twice; each is as stretches_of makes it. Cost: O(stretches).
std::vector<Overlap> overlaps(const std::vector<Stretch>& a, const std::vector<Stretch>& b);

}  // namespace strait
