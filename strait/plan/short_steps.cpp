#include "strait/plan/short_steps.h"

#include <algorithm>
#include <optional>

#include "strait/topology/mesh.h"

namespace strait::plan {
namespace {

/// Micro-steps of a step, and of the two that tell it.
struct Lengths {
  int64_t whole = 0, longer = 0, shorter = 0;
};

constexpr int64_t kLeast = 4;  // the first and the last one are others, and those beside them

/// nullopt: the step itself is as cheap, or is no matter of micro-batches.
std::optional<Lengths> lengths_of(const Run& run, int64_t ranks) {
  const int64_t size = run.train.micro_batch_size;
  if (size <= 0 || run.train.global_batch_tokens > 0 || run.sync.policy != "every-step") return {};
  const Mesh mesh(run.mesh, ranks);
  const int64_t each = mesh.data_ranks() * size;
  if (run.train.global_batch_size % each != 0) return {};
  const int64_t stages = mesh.axis("stage").size;
  // All micro-batches of gpipe are under way at once, and take memory.
  if (stages > 1 && run.pipeline.order == "gpipe") return {};
  // Orders fill n stages with up to 2 n - 1 micro-batches; some take multiples of n alone.
  const int64_t shorter = stages > 1 ? 2 * std::max(stages, kLeast / 2) : kLeast;
  const int64_t longer = shorter + (stages > 1 ? stages : kLeast);
  const int64_t whole = run.train.global_batch_size / each;
  if (whole <= shorter + longer) return {};
  return Lengths{whole, longer, shorter};
}

/// The run with `micro_steps` of its `all` micro-steps.
Run shortened(Run run, int64_t micro_steps, int64_t all) {
  run.train.global_batch_size = run.train.global_batch_size / all * micro_steps;
  return run;
}

}  // namespace

Candidate estimate(const Run& run, const Setting& setting) {
  const std::optional<Lengths> lengths = lengths_of(run, setting.ranks);
  if (!lengths) return evaluate(run, setting);
  const auto& [whole, longer, shorter] = *lengths;
  Candidate candidate = evaluate(shortened(run, longer, whole), setting);
  if (candidate.fits()) {
    const Candidate less = evaluate(shortened(run, shorter, whole), setting);
    const double turns =
        static_cast<double>(whole - longer) / static_cast<double>(longer - shorter);
    const auto go_on = [&](auto part, auto field) {
      double& value = candidate.*part.*field;
      value += turns * (value - less.*part.*field);
    };
    for (const auto field : {&sim::Result::seconds, &sim::Result::compute_seconds,
                             &sim::Result::exposed_seconds, &sim::Result::bubble_seconds})
      go_on(&Candidate::simulated, field);
    for (const auto field :
         {&cost::Cost::compute_seconds, &cost::Cost::communication_seconds, &cost::Cost::flops})
      go_on(&Candidate::cost, field);
    candidate.bound_seconds += turns * (candidate.bound_seconds - less.bound_seconds);
  }
  candidate.told = true;
  candidate.design.run = run;
  candidate.design.batch.global_batch_size = run.train.global_batch_size;
  candidate.design.batch.accumulation = whole;
  return candidate;
}

}  // namespace strait::plan
