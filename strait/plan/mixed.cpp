#include "strait/plan/mixed.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "strait/base/errors.h"
#include "strait/config/cluster_file.h"
#include "strait/config/precision.h"
#include "strait/plan/grids.h"
#include "strait/plan/stages.h"
#include "strait/plan/tensor_grid.h"
#include "strait/shape/shape.h"

namespace strait::plan {
namespace {

double number(int64_t value) { return static_cast<double>(value); }

/// Sizes of axes, and what a step on them would take by a rough count.
struct Mixture {
  int64_t x = 1, sequence = 1, stage = 1;
  bool splits_rows = false;  // tensor.sequence_parallel
  double seconds = 0, bytes = 0;
};

/// Counts mixtures of one run.
class Counter {
 public:
  Counter(const Run& run, const Setting& setting)
      : run_(run),
        ranks_(setting.ranks),
        cluster_(resolve_cluster(run, setting.ranks)),
        rate_(ring_rate(cluster_)),
        step_(grid_step(run)),
        shape_(model_shape(run.model, setting.vocabulary)),
        parameters_(number(shape_.parameters())),
        vocabulary_(number(std::max(run.model.shape.vocabulary, setting.vocabulary))) {}

  Mixture count(Mixture mixture) const {
    const int64_t data = ranks_ / (mixture.x * mixture.sequence * mixture.stage);
    const double micro_batches = std::max(number(step_.batch) / number(data), 1.0);
    mixture.seconds = seconds(mixture, data, micro_batches);
    mixture.bytes = bytes(mixture, data, micro_batches);
    return mixture;
  }
  /// Ranks that reach each other without the outermost links.
  int64_t inside() const {
    const int64_t levels = std::ssize(cluster_.levels);
    return levels > 1 ? cluster_.group_size(levels - 2) : ranks_;
  }
  double has_bytes() const { return run_.plan.memory_share * number(cluster_.memory_bytes); }

 private:
  /// Forward, backward and what is computed again, on all ranks, of which each waits for its first
  /// micro-batch; what x sends, nothing hidden, and what data does; the keys that attention does
  /// not hide.
  double seconds(const Mixture& on, int64_t data, double micro_batches) const {
    const double again = step_.recomputes ? 4.0 / 3 : 1;
    const Dtype dtype = dtype_of(run_.train.precision);
    const double flops = model_flops_per_token(shape_, step_.tokens);
    const double computing = again * flops * number(step_.batch * step_.tokens) /
                             (number(ranks_) * cluster_.model_flops_per_second(dtype));
    const double attention = computing * std::max(1 - 6 * parameters_ / flops, 0.0);
    const int64_t sharers = data * on.sequence;
    const GridBytes sent = grid_bytes(run_.model.shape, {on.x, 1, 1, sharers}, step_);
    double links = sent.x / rate_(1, on.x);
    if (sharers > 1) links += sent.data / rate_(on.x, sharers);
    const double stages = number(on.stage);
    const double shown = std::max(keys_seconds(on, micro_batches) / stages - attention, 0.0);
    return (computing + links / stages + shown) * (1 + (stages - 1) / micro_batches);
  }

  /// Keys and values go round in each pass, and their gradients do once.
  double keys_seconds(const Mixture& on, double micro_batches) const {
    if (on.sequence == 1) return 0;
    const ShapeOptions& shape = run_.model.shape;
    const double width = 2 * number(shape.kv_heads * shape.head_elements()) / number(on.x);
    const double others = number(on.sequence - 1) / number(on.sequence);
    return (step_.recomputes ? 4 : 3) * number(shape.layers) * micro_batches * others *
           number(step_.tokens) * width * number(step_.number_bytes) / rate_(on.x, on.sequence);
  }

  /// Weights, gradients and a share of the optimizer's state of the first or the last stage, which
  /// has an embedding besides its blocks; inputs of blocks, of the micro-batches under way; one
  /// block that is computed again, and logits.
  double bytes(const Mixture& on, int64_t data, double micro_batches) const {
    const ShapeOptions& shape = run_.model.shape;
    const double wide = number(step_.gradient_bytes), narrow = number(step_.number_bytes);
    const double state =
        narrow + wide + (narrow < wide ? 3 : 2) * wide / number(data * on.sequence);
    const double end = vocabulary_ * number(shape.width);
    const double tokens = number(step_.tokens) / number(on.sequence);
    const bool splits = on.splits_rows || run_.tensor.sequence_parallel;
    const double rows = tokens * number(shape.width) * narrow / number(splits ? on.x : 1);
    const double block = tokens * number(4 * shape.width + 3 * shape.ffn_width) * narrow;
    const double logits = tokens * vocabulary_ * (narrow + wide);
    return ((parameters_ - end) / number(on.stage) + end) / number(on.x) * state +
           std::min(number(on.stage), micro_batches) * number(shape.layers) / number(on.stage) *
               rows +
           (block + logits) / number(on.x);
  }

  const Run& run_;
  const int64_t ranks_;
  const Cluster cluster_;
  const RingRate rate_;
  const GridStep step_;
  const ModelShape shape_;
  const double parameters_, vocabulary_;
};

/// 1, and where the plan may vary the axis its other sizes: powers of two.
std::vector<int64_t> sizes(const Run& run, const char* what, int64_t most) {
  std::vector<int64_t> all = {1};
  if (!searches(run, what)) return all;
  for (int64_t size = 2; size <= most; size *= 2) all.push_back(size);
  return all;
}

/// All of at least two axes, which the ranks are a multiple of; rows split where they do not fit
/// otherwise.
std::vector<Mixture> mixtures(const Run& run, const Counter& counter, int64_t ranks) {
  std::vector<int64_t> stages = {1};
  if (searches(run, "pipeline"))
    std::ranges::copy(numbers_of_stages(run, ranks).all, std::back_inserter(stages));
  std::vector<Mixture> all;
  for (const int64_t x : sizes(run, "mesh", std::min(ranks, counter.inside())))
    for (const int64_t sequence : sizes(run, "sequence", ranks / x))
      for (const int64_t stage : stages) {
        if (ranks % (x * sequence * stage) != 0) continue;
        if ((x > 1) + (sequence > 1) + (stage > 1) < 2) continue;
        const Mixture whole = counter.count({.x = x, .sequence = sequence, .stage = stage});
        const bool splits =
            whole.bytes > counter.has_bytes() && x > 1 && !run.is_set("tensor.sequence_parallel");
        all.push_back(splits ? counter.count({x, sequence, stage, true}) : whole);
      }
  return all;
}

}  // namespace

std::vector<Run> mixed_meshes(const Run& run, const Setting& setting, size_t most,
                              const Require& require) {
  const Counter counter(run, setting);
  std::vector<Mixture> all = mixtures(run, counter, setting.ranks);
  std::ranges::stable_sort(all, {}, [&](const Mixture& mixture) {
    const bool fits = mixture.bytes <= counter.has_bytes();
    return std::tuple(!fits, fits ? mixture.seconds : mixture.bytes);
  });
  std::vector<Run> runs;
  for (const Mixture& mixture : all) {
    if (runs.size() == most) break;
    Run trial = run;
    const auto choose_axis = [&](const char* key, int64_t& axis, int64_t size) {
      if (size > 1) choose(trial, key, axis, size);
    };
    choose_axis("mesh.axes.x", trial.mesh.axes.x, mixture.x);
    choose_axis("mesh.axes.sequence", trial.mesh.axes.sequence, mixture.sequence);
    choose_axis("mesh.axes.stage", trial.mesh.axes.stage, mixture.stage);
    if (mixture.splits_rows)
      choose(trial, "tensor.sequence_parallel", trial.tensor.sequence_parallel, true);
    try {
      require_grid(trial, setting.vocabulary);
      require(trial);
    } catch (const UserError&) {
      continue;  // what the model, its device or the batch do not allow
    }
    runs.push_back(std::move(trial));
  }
  return runs;
}

}  // namespace strait::plan
