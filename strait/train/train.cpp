#include "strait/train/train.h"

#include <chrono>

#include "strait/base/file.h"
#include "strait/comm/threads/thread_world.h"
#include "strait/trace/spans.h"

namespace strait::train {
namespace {

/// Losses and validation of the steps before this process, from the run's own metrics.
void take_history(const Job& job, Outcome& outcome) {
  const std::string path = job.folder.path + "/metrics.jsonl";
  if (outcome.first_step == 0) return;
  for (const report::StepMetrics& metrics : report::read_metrics(path)) {
    outcome.losses.push_back(metrics.loss);
    if (metrics.validation_loss == metrics.validation_loss)
      outcome.validation.push_back({metrics.step, metrics.validation_loss});
  }
}

std::string timeline(const program::Program& program,
                     const std::vector<trace::Recorder>& recorders) {
  std::vector<const trace::Recorder*> ranks;
  for (const trace::Recorder& recorder : recorders) ranks.push_back(&recorder);
  return trace::chrome_trace(ranks, program::stream_names(program));
}

}  // namespace

void train(const Job& job, const Observer& observer, const std::atomic<int>& signal,
           Outcome& outcome) {
  Shared shared(job, observer, signal);
  shared.outcome.first_step = job.resume ? job.resume->manifest().step : 0;
  shared.outcome.steps = shared.outcome.first_step;
  shared.metrics = std::make_unique<report::MetricsWriter>(job.folder.path + "/metrics.jsonl",
                                                           shared.outcome.first_step);
  const double wall =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  shared.events = std::make_unique<report::TensorboardWriter>(
      job.folder.path + "/tensorboard", wall, std::to_string(shared.outcome.first_step));
  take_history(job, shared.outcome);
  const auto worlds = comm::make_thread_worlds(job.design.batch.ranks, job.design.cluster);
  try {
    comm::run_ranks(*worlds, [&](comm::World& world) { Trainer(shared, world).run(); });
  } catch (...) {
    outcome = std::move(shared.outcome);
    throw;
  }
  outcome = std::move(shared.outcome);
  if (job.design.run.output.timeline_steps > 0)
    write_file_atomically(job.folder.path + "/timeline.json",
                          timeline(job.design.train, shared.recorders));
}

}  // namespace strait::train
