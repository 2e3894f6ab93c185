// The programs of one planned batch.
#pragma once

#include <memory>

#include "strait/strategy/compose/compose.h"
#include "strait/strategy/compose/design.h"

namespace strait::test {

/// The design's, with those of every rank's steps composed for the plan.
inline program::ProgramSet programs_of(const strategy::Design& design,
                                       const std::shared_ptr<const sequence::Plan>& plan) {
  program::ProgramSet set = design.programs;
  for (program::StepKind& kind : set.kinds) {
    if (kind.name != strategy::kSteady && kind.name != strategy::kUnchanged) continue;
    for (size_t rank = 0; rank < kind.classes.size(); ++rank)
      kind.classes[rank] =
          strategy::compose_for_plan(design, kind.name, static_cast<int64_t>(rank), plan);
  }
  return set;
}

}  // namespace strait::test
