#include "strait/strategy/compose/compose.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "strait/draft/draft.h"
#include "strait/sequence/rank_layout.h"
#include "strait/strategy/adapt/adapt.h"
#include "strait/strategy/finish/finish.h"
#include "strait/strategy/fuse/fuse.h"
#include "strait/strategy/grid/grid.h"
#include "strait/strategy/hoist/hoist.h"
#include "strait/strategy/order/order.h"
#include "strait/strategy/pipeline/pipeline.h"
#include "strait/strategy/sequence/sequence.h"
#include "strait/strategy/sharding/place.h"
#include "strait/strategy/tiles/tiles.h"

namespace strait::strategy {
namespace {

const char* step_kind(const StepOptions& options) {
  switch (options.purpose) {
    case Purpose::kTrain:
      if (options.validation == draft::Validation::kAlone) return "validation";
      return options.weights_unchanged ? "unchanged" : "steady";
    case Purpose::kEvaluate:
      return options.weights_unchanged ? "evaluation-unchanged" : "evaluation";
    case Purpose::kGenerate:
      return "generation";
    case Purpose::kPublish:
    case Purpose::kBorder:  // its kind is that of the border
      break;
  }
  return "publish";
}

/// Ranks whose programs are equal.
using RankClass = std::vector<int64_t>;

/// By their plan, in the order of ranks, and by their place in it.
std::vector<RankClass> document_classes(const Ingredients& from) {
  std::vector<const sequence::Plan*> plans;
  std::map<std::pair<int64_t, int64_t>, RankClass> found;
  for (int64_t rank = 0; rank < from.mesh.ranks(); ++rank) {
    const sequence::Plan* plan =
        from.plans.empty() ? nullptr : from.plans[static_cast<size_t>(rank)].get();
    const auto known = std::ranges::find(plans, plan);
    const int64_t number = known - plans.begin();
    if (known == plans.end()) plans.push_back(plan);
    found[{number, from.mesh.coordinate(rank, "sequence")}].push_back(rank);
  }
  std::vector<RankClass> classes;
  for (auto& [place, ranks] : found) classes.push_back(std::move(ranks));
  return classes;
}

/// The passes that make ranks differ say how.
std::vector<RankClass> classes_of(const Ingredients& from, const StepOptions& options) {
  if (options.plan || !from.plans.empty()) return document_classes(from);
  return stage_classes(from.shape, from.mesh, options.pipeline);
}

draft::Draft start(const Ingredients& from, const RankClass& ranks, const StepOptions& options) {
  draft::Draft draft{.mesh = from.mesh};
  draft.program.name = from.placement.preset;
  draft.program.step_kind = step_kind(options);
  draft.program.ranks = from.mesh.ranks();
  draft.program.members = ranks;
  draft.program.streams = {{"compute", 0}};
  draft.program.tokens = options.micro_batch_size * options.tokens * options.accumulation;
  draft.rank = ranks.empty() ? 0 : ranks.front();
  draft.splits_backward = splits_backward(from.mesh, draft.rank, options);
  for (size_t unit = 0; unit < from.shape.units.size(); ++unit)
    draft.units.push_back(static_cast<int64_t>(unit));
  return draft;
}

/// Of a batch that is planned each rank has as many rows as the plan says.
StepOptions options_of(const Ingredients& from, const RankClass& ranks, StepOptions options) {
  if (!from.plans.empty() && !ranks.empty())
    options.plan = from.plans[static_cast<size_t>(ranks.front())];
  if (!options.plan || ranks.empty()) return options;
  const int64_t member = from.mesh.coordinate(ranks.front(), "sequence");
  const sequence::RankLayout layout = sequence::rank_layout(*options.plan, member);
  options.tokens = layout.rows;
  options.attention_tokens =
      options.attends_apart() ? std::max<int64_t>(1, layout.attention_rows) : layout.attention_rows;
  return options;
}

program::Program compose_class(const Ingredients& from, const RankClass& ranks,
                               const StepOptions& of_all, const std::optional<Border>& border) {
  const StepOptions options = options_of(from, ranks, of_all);
  draft::Draft draft = start(from, ranks, options);
  begin(draft, options);                                      // the step's scalars
  order(draft, from.shape, options);                          // who computes what when
  pipeline(draft, from.shape, from.cluster, options);         // of it, a stage's part
  grid(draft, from.shape, from.cluster, options);             // of each block, a rank's part
  share_sequences(draft, from.shape, from.cluster, options);  // of each sequence, a rank's tokens
  fuse(draft, from.shape, options);                           // what nothing separates is one op
  tiles(draft, from.shape, from.cluster, options);            // sums over x beside their products
  end_values(draft);                                          // no value outlives its last use
  // Gathers before a use, reductions after a making.
  place(draft, from.shape, from.placement, from.cluster, options);
  const size_t computed = draft.program.body.size();
  finish(draft, options);  // norm, clip, update, publish
  if (from.adapt.adapts() && options.purpose == Purpose::kTrain)
    adapt(draft, from.adapt);  // sums of gradients for the next choice of settings
  if (border)                  // replicas agree
    synchronise(draft, from.shape, from.cluster, from.policy, *border);
  if (options.in_backward && options.purpose == Purpose::kTrain)
    hoist(draft.program, computed);  // updates, and what follows them, as early as may be
  draft::drop_unnamed(draft.program);
  return std::move(draft.program);
}

}  // namespace

std::vector<program::Program> compose(const Ingredients& from, const StepOptions& options) {
  std::vector<program::Program> classes;
  for (const RankClass& ranks : classes_of(from, options))
    classes.push_back(compose_class(from, ranks, options, std::nullopt));
  return classes;
}

program::Program compose_for_rank(const Ingredients& from, const StepOptions& options,
                                  int64_t rank) {
  return compose_class(from, {rank}, options, std::nullopt);
}

std::vector<program::Program> compose_border(const Ingredients& from, StepOptions options,
                                             const Border& border) {
  const bool with_step = options.in_backward && in_step(from.placement, border);
  options.purpose = with_step ? Purpose::kTrain : Purpose::kBorder;
  options.weights_unchanged = false;
  std::vector<program::Program> classes;
  for (const RankClass& ranks : classes_of(from, options)) {
    classes.push_back(compose_class(from, ranks, options, border));
    classes.back().step_kind = border_kind(border);
  }
  return classes;
}

bool in_step(const Placement& placement, const Border& border) {
  return placement.secondary == 1 &&
         (border.part == BorderPart::kLaunch || border.part == BorderPart::kAtOnce);
}

program::Program compose(const ModelShape& shape, const Placement& placement,
                         const Cluster& cluster, const StepOptions& options) {
  const Mesh mesh(MeshOptions{}, placement.ranks);
  return std::move(compose({shape, placement, cluster, mesh}, options).front());
}

Placement whole_placement() {
  Placement whole;
  whole.preset = "generation";
  return whole;
}

}  // namespace strait::strategy
