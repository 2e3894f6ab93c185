#include "strait/plan/candidate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "strait/config/head_ranks.h"
#include "strait/plan/codecs.h"
#include "strait/plan/grids.h"
#include "strait/plan/sequence_axis.h"
#include "strait/plan/stages.h"
#include "strait/predict/predict.h"
#include "strait/program/memory_json.h"
#include "strait/trace/level_json.h"

namespace strait::plan {
namespace {

/// null where a gradient is exchanged in every step.
Json policy_json(const strategy::Policy& policy) {
  if (!policy.local_steps()) return {};
  return Json::object({{"policy", policy.name},
                       {"replicas", policy.replicas},
                       {"period_steps", policy.period},
                       {"fragments", policy.fragments},
                       {"delay_steps", policy.delay},
                       {"eager", policy.eager},
                       {"codec", codec::print_codec(policy.codec)}});
}

/// null without stages.
Json pipeline_json(const strategy::Design& design) {
  const PipelineOptions& pipeline = design.run.pipeline;
  if (design.mesh.axis("stage").size == 1) return {};
  return Json::object({{"order", pipeline.order},
                       {"chunks_per_stage", pipeline.chunks_per_stage},
                       {"cuts", pipeline.cuts}});
}

/// null where no ranks share sequences.
Json sequence_json(const strategy::Design& design) {
  const int64_t sharers = design.mesh.axis("sequence").size;
  if (sharers == 1) return {};
  const std::optional<int64_t> heads = head_ranks(design);
  return Json::object({{"ranks", sharers},
                       {"engine", design.run.sequence.engine},
                       {"head_ranks", heads ? Json(*heads) : Json("auto")}});
}

Json quality_json(const QualityCost& cost) {
  return Json::object({{"loss_gap_nats", cost.known.gap_nats},
                       {"period_steps", cost.known.period},
                       {"replicas", cost.known.replicas},
                       {"parameters", cost.known.parameters},
                       {"extrapolated", cost.extrapolated},
                       {"source", cost.known.source}});
}

}  // namespace

std::optional<int64_t> head_ranks(const strategy::Design& design) {
  if (!design.planner) return design.shape.head_ranks;
  const std::optional<int64_t> given = given_head_ranks(design.run.sequence);
  return given ? std::optional(std::max<int64_t>(1, *given)) : std::nullopt;
}

std::string candidate_text(const Run& run) {
  std::vector<std::string> parts;
  const MeshAxes& axes = run.mesh.axes;
  if (axes.x * axes.y > 1) parts.push_back(grid_text(run));
  if (axes.sequence > 1) parts.push_back(sharing_text(run));
  if (axes.stage > 1) parts.push_back(staging_text(run));
  parts.push_back(run.placement.preset);
  parts.push_back(fmt::format("recompute {}", run.train.recompute));
  parts.push_back(fmt::format("micro-batches of {}", run.train.micro_batch_size));
  if (!codecs_text(run).empty()) parts.push_back(codecs_text(run));
  if (run.sync.policy != "every-step") parts.push_back(run.sync.policy);
  return fmt::format("{}", fmt::join(parts, ", "));
}

int64_t usable_bytes(const strategy::Design& design) {
  return static_cast<int64_t>(design.run.plan.memory_share *
                              static_cast<double>(design.cluster.memory_bytes));
}

Candidate evaluate(const Run& run, const Setting& setting) try {
  if (setting.watch) setting.watch(run);
  Candidate candidate;
  candidate.design =
      strategy::make_design(run, setting.ranks, setting.vocabulary, 0, setting.corpus);
  const strategy::Design& design = candidate.design;
  const std::vector<program::MemoryUse> peaks = predict::peak_memories(design);
  candidate.memory = peaks[program::largest(peaks)];
  if (!candidate.fits()) return candidate;
  candidate.cost = predict::price(design);
  candidate.simulated = predict::simulate(design);
  candidate.bound_seconds = candidate.cost.flops / design.cluster.flops_per_second(design.dtype);
  return candidate;
} catch (const InternalError& error) {
  throw InternalError(fmt::format("candidate {}: {}", candidate_text(run), error.what()));
}

double tokens_per_second(const Candidate& candidate) {
  const strategy::Design& design = candidate.design;
  return static_cast<double>(tokens_per_step(design.run, design.batch)) /
         candidate.simulated.seconds;
}

double model_flops_utilization(const Candidate& candidate) {
  const strategy::Design& design = candidate.design;
  const double peak =
      static_cast<double>(design.batch.ranks) * design.cluster.flops_per_second(design.dtype);
  return tokens_per_second(candidate) * design.model_flops_per_token / peak;
}

Json candidate_json(const Candidate& candidate, int64_t position) {
  const strategy::Design& design = candidate.design;
  const double seconds = candidate.simulated.seconds;
  const std::optional<PolicyFigures>& figures = candidate.policy;
  return Json::object(
      {{"position", position},
       {"summary", fmt::format("{}: {}", design.placement.preset, design.placement.describe())},
       {"mesh", mesh_json(design.mesh)},
       {"placement", design.placement.preset},
       {"micro_batch_size", design.batch.micro_batch_size},
       {"accumulation", design.batch.accumulation},
       {"recompute", design.run.train.recompute},
       {"sequence_parallel", design.run.tensor.sequence_parallel},
       {"pipeline", pipeline_json(design)},
       {"sequence", sequence_json(design)},
       {"seconds_per_step", seconds},
       {"cost_seconds_per_step",
        candidate.cost.compute_seconds + candidate.cost.communication_seconds},
       {"compute_seconds", candidate.simulated.compute_seconds},
       {"exposed_communication_seconds", candidate.simulated.exposed_seconds},
       {"bubble_seconds", candidate.simulated.bubble_seconds},
       {"tokens_per_second", tokens_per_second(candidate)},
       {"model_flops_utilization", model_flops_utilization(candidate)},
       {"bytes_per_step",
        trace::levels_json(candidate.simulated.traffic, level_names(design.cluster), 1)},
       {"memory", program::to_json(candidate.memory)},
       {"sync", policy_json(design.policy)},
       {"utilization", figures ? Json(figures->utilization) : Json()},
       {"peak_bytes_in_flight", figures ? Json(figures->peak_bytes_in_flight) : Json()},
       {"quality", figures && figures->quality ? quality_json(*figures->quality) : Json()}});
}

}  // namespace strait::plan
