#include "strait/plan/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "strait/base/errors.h"
#include "strait/config/check_chain.h"
#include "strait/config/check_mesh.h"
#include "strait/config/cluster_file.h"
#include "strait/config/keys.h"
#include "strait/topology/cluster.h"

namespace strait::plan {
namespace {

/// How many groups the outermost level of links that has several joins; 1 where all ranks are in
/// one group of the innermost level.
int64_t outermost_parts(const Run& run, int64_t ranks) {
  const Cluster cluster = resolve_cluster(run, ranks);
  int64_t inside = 1, parts = 1;
  for (size_t level = 0; level + 1 < cluster.levels.size(); ++level) {
    inside *= cluster.levels[level].size;
    if (inside >= ranks) break;
    parts = ranks / inside;
  }
  return parts;
}

}  // namespace

std::string staging_text(const Run& run) {
  const int64_t chunks = run.pipeline.chunks_per_stage;
  return fmt::format("stage {}, {}{}", run.mesh.axes.stage, run.pipeline.order,
                     chunks > 1 ? fmt::format(" {}", chunks) : "");
}

std::vector<Run> orders_of_stages(const Run& run) {
  std::vector<Run> runs;
  const std::set<int64_t> counts = {1, 2, 4, run.pipeline.chunks_per_stage};
  for (const std::string& order : find_key("pipeline.order")->rule.choices)
    for (const int64_t chunks : counts) {
      Run one = run;
      one.pipeline.order = order;
      one.pipeline.chunks_per_stage = chunks;
      write_key(one, "pipeline.order");
      write_key(one, "pipeline.chunks_per_stage");
      try {
        check_pipeline(one);
      } catch (const UserError&) {
        continue;  // what the run, its model or its cuts do not allow
      }
      runs.push_back(std::move(one));
    }
  return runs;
}

bool takes_micro_batches(const Run& run, int64_t count) {
  return run.pipeline.order != "interleaved" || count % run.mesh.axes.stage == 0;
}

Trials cut_into_stages(const Run& run, int64_t stages, const Require& require) {
  Run cut = run;
  cut.mesh.axes.stage = stages;
  write_key(cut, "mesh.axes.stage");
  try {
    require(cut);
  } catch (const UserError& error) {
    return {{}, {refusal(fmt::format("stage {}", stages), error.what(), 1)}};
  }
  return {orders_of_stages(cut), {}};
}

StageNumbers numbers_of_stages(const Run& run, int64_t ranks) {
  StageNumbers numbers;
  numbers.parts = outermost_parts(run, ranks);
  const int64_t most = is_chain(run) ? ranks : std::min(ranks, run.model.shape.layers);
  for (int64_t stages = 2; stages <= most; ++stages)
    if (ranks % stages == 0) numbers.all.push_back(stages);
  return numbers;
}

}  // namespace strait::plan
