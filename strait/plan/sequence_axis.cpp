#include "strait/plan/sequence_axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "strait/base/errors.h"

namespace strait::plan {
namespace {

std::vector<std::string> engines(const Run& run) {
  if (run.is_set("sequence.engine")) return {run.sequence.engine};
  std::vector<std::string> names = {"ring", "gathered", "heads"};
  if (run.train.global_batch_tokens > 0) names.push_back("zeppelin");
  return names;
}

Rejection refusal(std::string family, std::string reason, int64_t count) {
  Rejection rejection;
  rejection.family = std::move(family);
  rejection.reason = std::move(reason);
  rejection.count = count;
  return rejection;
}

}  // namespace

std::string sharing_text(const Run& run) {
  return fmt::format("sequence {}, {}", run.mesh.axes.sequence, run.sequence.engine);
}

SharedSequences share_sequences(const Run& run, int64_t sharers,
                                const std::function<void(const Run&)>& require) {
  SharedSequences shared;
  for (const std::string& engine : engines(run)) {
    Run trial = run;
    trial.mesh.axes.sequence = sharers;
    trial.sequence.engine = engine;
    trial.written["mesh.axes.sequence"] = trial.written["sequence.engine"] = {"plan", 0};
    try {
      require(trial);
      shared.runs.push_back(std::move(trial));
    } catch (const UserError& error) {
      shared.refused.push_back(refusal(sharing_text(trial), error.what(), 1));
    }
  }
  const auto same = [&](const Rejection& one) {
    return one.reason == shared.refused.front().reason;
  };
  if (shared.runs.empty() && std::ranges::all_of(shared.refused, same))
    shared.refused = {refusal(fmt::format("sequence {}", sharers), shared.refused.front().reason,
                              std::ssize(shared.refused))};
  return shared;
}

}  // namespace strait::plan
