#include "strait/plan/short_steps.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "strait/topology/mesh.h"

namespace strait::plan {
namespace {

/// Micro-steps of a step, and of the two that tell it.
struct Lengths {
  int64_t whole = 0, longer = 0, shorter = 0;
};

constexpr int64_t kLeast = 4;  // the first and the last one are others, and those beside them

/// 0: they follow from documents, or from what a design chooses.
int64_t micro_steps_of(const Run& run, int64_t ranks) {
  const int64_t size = run.train.micro_batch_size;
  if (size <= 0 || run.train.global_batch_tokens > 0) return 0;
  return run.train.global_batch_size / (Mesh(run.mesh, ranks).data_ranks() * size);
}

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

/// `value` of a step of `longer` micro-steps, `turns` times as much further as from the shorter
/// one.
double go_on(double value, double less, double turns) { return value + turns * (value - less); }

Ledger go_on(const Ledger& ledger, const Ledger& less, double turns) {
  Ledger whole = ledger;
  const auto add = [&](const Ledger& of, double times) {
    for (Traffic row : of.rows()) {
      for (int64_t* value : {&row.payload_bytes, &row.metadata_bytes, &row.count})
        *value = std::llround(times * static_cast<double>(*value));
      whole.add(row);
    }
  };
  add(ledger, turns);
  add(less, -turns);
  return whole;
}

/// The run with `micro_steps` of its `all` micro-steps.
Run shortened(Run run, int64_t micro_steps, int64_t all) {
  run.train.global_batch_size = run.train.global_batch_size / all * micro_steps;
  return run;
}

}  // namespace

int64_t composed_micro_steps(const Run& run, int64_t ranks) {
  if (const std::optional<Lengths> lengths = lengths_of(run, ranks)) return lengths->longer;
  return micro_steps_of(run, ranks);
}

Candidate estimate(const Run& run, const Setting& setting) {
  const std::optional<Lengths> lengths = lengths_of(run, setting.ranks);
  if (!lengths) return evaluate(run, setting);
  const auto& [whole, longer, shorter] = *lengths;
  Candidate candidate = evaluate(shortened(run, longer, whole), setting);
  if (candidate.fits()) {
    const Candidate less = evaluate(shortened(run, shorter, whole), setting);
    const double turns =
        static_cast<double>(whole - longer) / static_cast<double>(longer - shorter);
    const auto extend = [&](auto& value, const auto& of_less) {
      value = go_on(value, of_less, turns);
    };
    for (const auto field : {&sim::Result::seconds, &sim::Result::compute_seconds,
                             &sim::Result::exposed_seconds, &sim::Result::bubble_seconds})
      extend(candidate.simulated.*field, less.simulated.*field);
    for (const auto field :
         {&cost::Cost::compute_seconds, &cost::Cost::communication_seconds, &cost::Cost::flops})
      extend(candidate.cost.*field, less.cost.*field);
    extend(candidate.bound_seconds, less.bound_seconds);
    extend(candidate.simulated.traffic, less.simulated.traffic);
  }
  candidate.told = true;
  candidate.design.run = run;
  candidate.design.batch.global_batch_size = run.train.global_batch_size;
  candidate.design.batch.accumulation = whole;
  return candidate;
}

}  // namespace strait::plan
