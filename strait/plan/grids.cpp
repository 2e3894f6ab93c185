#include "strait/plan/grids.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "strait/base/errors.h"
#include "strait/config/cluster_file.h"
#include "strait/plan/tensor_grid.h"
#include "strait/shape/split.h"

namespace strait::plan {

GridStep grid_step(const Run& run) {
  const int64_t context = run.model.shape.context, documents = run.train.global_batch_tokens;
  GridStep step{.batch = run.train.global_batch_size, .tokens = context};
  if (documents > 0) {
    step.batch = (documents + context - 1) / context;
    step.even = false;
  }
  step.recomputes = run.train.recompute != "none";
  step.sum_bytes = 4;
  if (run.train.precision == "fp32") step.number_bytes = 4;
  if (run.train.precision == "fp64") step.number_bytes = step.sum_bytes = step.gradient_bytes = 8;
  return step;
}

Run on_grid(const Run& run, int64_t x, int64_t y) {
  Run shared = run;
  shared.mesh.axes.x = x;
  shared.mesh.axes.y = y;
  write_key(shared, "mesh.axes.x");
  write_key(shared, "mesh.axes.y");
  return shared;
}

std::string grid_text(const Run& run) {
  const MeshAxes& axes = run.mesh.axes;
  std::string text;
  if (axes.x > 1) text += fmt::format("x {}", axes.x);
  if (axes.y > 1) text += fmt::format("{}y {}", text.empty() ? "" : ", ", axes.y);
  if (run.tensor.sequence_parallel) text += ", rows split";
  return text;
}

void require_grid(const Run& run, int64_t vocabulary) {
  check_grid(run.model.shape, block_style(run.model.family),
             std::max(run.model.shape.vocabulary, vocabulary), {run.mesh.axes.x, run.mesh.axes.y});
}

/// Another trial, or why it is none: what the model, its device or the levels do not allow. Of the
/// refusals the first, most often the reason of all.
static void add_trial(Trials& trials, Run trial, const Require& require) {
  try {
    require(trial);
  } catch (const UserError& error) {
    if (trials.refused.empty())
      trials.refused.push_back(refusal(grid_text(trial), error.what(), 1));
    return;
  }
  trials.runs.push_back(std::move(trial));
}

Trials quietest_grids(const Run& run, const Setting& setting, size_t most, const Require& require) {
  Trials trials;
  const int64_t ranks = setting.ranks;
  const RingRate rate = ring_rate(resolve_cluster(run, ranks));
  for (const auto& [grid, seconds] : rank_grids(run.model.shape, ranks, 2, grid_step(run), rate)) {
    if (grid.z > 1 || trials.runs.size() == most) continue;
    add_trial(trials, on_grid(run, grid.x, grid.y), [&](const Run& trial) {
      require(trial);
      require_grid(trial, setting.vocabulary);
    });
  }
  return trials;
}

Trials grids_of_unet(const Run& run, int64_t ranks, const Require& require) {
  Trials trials;
  for (int64_t x = 1; x <= ranks; ++x)
    for (int64_t y = 1; ranks % x == 0 && x * y <= ranks; ++y) {
      if (x * y > 1 && ranks % (x * y) == 0) add_trial(trials, on_grid(run, x, y), require);
    }
  return trials;
}

}  // namespace strait::plan
