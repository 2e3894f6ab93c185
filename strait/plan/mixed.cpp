#include "strait/plan/mixed.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "strait/base/errors.h"
#include "strait/config/cluster_file.h"
#include "strait/plan/grids.h"
#include "strait/plan/stages.h"
#include "strait/plan/tensor_grid.h"
#include "strait/shape/shape.h"
#include "strait/strategy/compose/precision.h"

namespace strait::plan {
namespace {

double number(int64_t value) { return static_cast<double>(value); }

/// x and stage, and what they would take by a rough count.
struct Mixture {
  int64_t x = 1, stage = 1;
  double seconds = 0, bytes = 0;
};

/// Counts mixtures of one run.
class Counter {
 public:
  Counter(const Run& run, const Setting& setting)
      : run_(run),
        ranks_(setting.ranks),
        cluster_(resolve_cluster(run, setting.ranks)),
        step_(grid_step(run)),
        parameters_(number(model_shape(run.model, setting.vocabulary).parameters())),
        end_(number(std::max(run.model.shape.vocabulary, setting.vocabulary)) *
             number(run.model.shape.width)) {}

  Mixture count(int64_t x, int64_t stage) const {
    const int64_t data = ranks_ / (x * stage);
    const double micro_batches = number(step_.batch) / number(data);
    return {x, stage, seconds(x, stage, data, micro_batches), bytes(x, stage, data, micro_batches)};
  }
  /// Ranks that reach each other without the outermost links.
  int64_t inside() const {
    const int64_t levels = std::ssize(cluster_.levels);
    return levels > 1 ? cluster_.group_size(levels - 2) : ranks_;
  }
  double has_bytes() const { return run_.plan.memory_share * number(cluster_.memory_bytes); }

 private:
  /// Forward, backward and what is computed again, on all ranks, of which each waits for its first
  /// micro-batch; what x sends, nothing hidden, and what data does.
  double seconds(int64_t x, int64_t stage, int64_t data, double micro_batches) const {
    const double passes = step_.recomputes ? 8 : 6;
    const Dtype dtype = strategy::dtype_of(run_.train.precision);
    const double products = passes * parameters_ * number(step_.batch * step_.tokens) /
                            (number(ranks_) * cluster_.model_flops_per_second(dtype));
    const GridBytes sent = grid_bytes(run_.model.shape, {x, 1, 1, data}, step_);
    const RingRate rate = ring_rate(cluster_);
    double links = sent.x / rate(1, x);
    if (data > 1) links += sent.data / rate(x, data);
    return (products + links / number(stage)) * (1 + number(stage - 1) / micro_batches);
  }

  /// Weights, gradients and a share of the optimizer's state of the first or the last stage, which
  /// has an embedding besides its blocks; inputs of blocks, of the micro-batches under way.
  double bytes(int64_t x, int64_t stage, int64_t data, double micro_batches) const {
    const double wide = number(step_.gradient_bytes), narrow = number(step_.number_bytes);
    const double state = narrow + wide + (narrow < wide ? 3 : 2) * wide / number(data);
    const double rows = number(step_.tokens) * number(run_.model.shape.width) * narrow;
    return ((parameters_ - end_) / number(stage) + end_) / number(x) * state +
           std::min(number(stage), micro_batches) * number(run_.model.shape.layers) /
               number(stage) * rows;
  }

  const Run& run_;
  const int64_t ranks_;
  const Cluster cluster_;
  const GridStep step_;
  const double parameters_, end_;  // of the model, of its embedding or its head
};

}  // namespace

std::vector<Run> stages_on_grids(const Run& run, const Setting& setting, size_t most,
                                 const Require& require) {
  const Counter counter(run, setting);
  std::vector<Mixture> mixtures;
  for (int64_t x = 2; x <= std::min(setting.ranks, counter.inside()); x *= 2) {
    if (setting.ranks % x != 0) break;
    for (const int64_t stage : numbers_of_stages(run, setting.ranks).all)
      if (setting.ranks / x % stage == 0) mixtures.push_back(counter.count(x, stage));
  }
  std::ranges::stable_sort(mixtures, {}, [&](const Mixture& mixture) {
    const bool fits = mixture.bytes <= counter.has_bytes();
    return std::tuple(!fits, fits ? mixture.seconds : mixture.bytes);
  });
  std::vector<Run> runs;
  for (const Mixture& mixture : mixtures) {
    if (runs.size() == most) break;
    Run trial = on_grid(run, mixture.x, 1);
    try {
      require_grid(trial, setting.vocabulary);
      choose(trial, "mesh.axes.stage", trial.mesh.axes.stage, mixture.stage);
      require(trial);
    } catch (const UserError&) {
      continue;  // what the model, its device or the batch do not allow
    }
    runs.push_back(std::move(trial));
  }
  return runs;
}

}  // namespace strait::plan
