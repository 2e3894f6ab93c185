// A program from passes that a test chooses, as compose makes it from all of them.
#pragma once

#include <functional>
#include <utility>

#include "strait/draft/draft.h"
#include "strait/strategy/compose/compose.h"
#include "strait/strategy/finish/finish.h"
#include "strait/strategy/order/order.h"
#include "strait/strategy/sharding/place.h"

namespace strait::test {

/// What stands between `order` and `place`, or behind `finish`.
using Passes = std::function<void(draft::Draft&)>;

inline program::Program compose_with(
    const strategy::Ingredients& from, const draft::StepOptions& options, const char* kind,
    const Passes& passes, const Passes& behind = [](draft::Draft&) {}) {
  draft::Draft draft{.mesh = from.mesh};
  draft.program.name = from.placement.preset;
  draft.program.step_kind = kind;
  draft.program.ranks = from.mesh.ranks();
  draft.program.streams = {{"compute", 0}};
  draft.program.tokens = options.micro_batch_size * options.tokens * options.accumulation;
  for (size_t unit = 0; unit < from.shape.units.size(); ++unit)
    draft.units.push_back(static_cast<int64_t>(unit));
  strategy::begin(draft, options);
  strategy::order(draft, from.shape, options);
  passes(draft);
  strategy::place(draft, from.shape, from.placement, from.cluster, options);
  strategy::finish(draft, options);
  behind(draft);
  draft::drop_unnamed(draft.program);
  return std::move(draft.program);
}

}  // namespace strait::test
