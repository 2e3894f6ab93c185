#include "strait/strategy/compose/compose.h"

#include "strait/draft/draft.h"
#include "strait/strategy/finish/finish.h"
#include "strait/strategy/order/order.h"
#include "strait/strategy/sharding/place.h"

namespace strait::strategy {
namespace {

const char* step_kind(const StepOptions& options) {
  switch (options.purpose) {
    case Purpose::kTrain:
      return options.weights_unchanged ? "unchanged" : "steady";
    case Purpose::kEvaluate:
      return options.weights_unchanged ? "evaluation-unchanged" : "evaluation";
    case Purpose::kGenerate:
      return "generation";
    case Purpose::kPublish:
      break;
  }
  return "publish";
}

draft::Draft start(const Placement& placement, const StepOptions& options) {
  draft::Draft draft;
  draft.program.name = placement.preset;
  draft.program.step_kind = step_kind(options);
  draft.program.ranks = placement.ranks;
  draft.program.streams = {{"compute", 0}};
  draft.program.tokens = options.micro_batch_size * options.tokens * options.accumulation;
  return draft;
}

}  // namespace

program::Program compose(const ModelShape& shape, const Placement& placement,
                         const Cluster& cluster, const StepOptions& options) {
  draft::Draft draft = start(placement, options);
  begin(draft, options);         // the step's scalars
  order(draft, shape, options);  // who computes what when
  place(draft, shape, placement, cluster,
        options);          // gathers before a use, reductions after a making
  finish(draft, options);  // norm, clip, update, publish
  return std::move(draft.program);
}

Placement whole_placement() {
  Placement whole;
  whole.preset = "generation";
  return whole;
}

}  // namespace strait::strategy
