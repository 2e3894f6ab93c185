// The instruction sets of the library, one after the other.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

// The library's instruction sets.
#include "strait/kernel/dispatch.h"
// After dispatch.h.
#include "hwy/targets.h"

namespace strait::kernel {

/// Runs `body` once per instruction set.
template <class Body>
void on_every_target(const Body& body) {
  const int64_t supported = hwy::SupportedTargets();
  const int64_t own = supported & ~static_cast<int64_t>(HWY_DISABLED_TARGETS);
  int64_t tried = 0;
  for (int64_t bit = 0; bit < 62; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((own & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    body();
    ++tried;
  }
  hwy::SetSupportedTargetsForTest(HWY_SCALAR);
  {
    SCOPED_TRACE("scalar");
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  EXPECT_GT(tried, 0);
}

}  // namespace strait::kernel
