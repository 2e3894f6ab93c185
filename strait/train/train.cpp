#include "strait/train/train.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/comm/bookkeeping.h"
#include "strait/comm/failure.h"
#include "strait/comm/threads/thread_world.h"
#include "strait/predict/predict.h"
#include "strait/threads/cores.h"
#include "strait/trace/spans.h"
#include "strait/train/process_watch.h"

namespace strait::train {
namespace {

/// Losses and validation of the steps before this process, from the run's own metrics. A converted
/// checkpoint has none.
void take_history(const Job& job, Outcome& outcome) {
  const std::string path = job.folder.path + "/metrics.jsonl";
  if (outcome.first_step == 0 || !std::filesystem::exists(path)) return;
  for (const report::StepMetrics& metrics : report::read_metrics(path)) {
    outcome.losses.push_back(metrics.loss);
    if (metrics.validation_loss == metrics.validation_loss)
      outcome.validation.push_back({metrics.step, metrics.validation_loss});
  }
}

trace::Timeline timeline_of(const Job& job, const Shared& shared, int64_t rank) {
  return {rank, &shared.recorders[static_cast<size_t>(rank)],
          program::stream_names(program::class_of(job.design.steady(), rank))};
}

std::string timelines(const Job& job, const Shared& shared) {
  std::vector<trace::Timeline> ranks;
  for (int64_t rank = 0; rank < job.design.batch.ranks; ++rank)
    ranks.push_back(timeline_of(job, shared, rank));
  return trace::chrome_trace(ranks);
}

/// A save that takes longer than its ranks may wait for each other: the disk does not answer.
std::optional<comm::Failure> overdue_save(const Job& job, const Shared& shared) {
  constexpr double kMarginSeconds = 5;
  const double limit = 2 * job.design.run.runtime.deadline_seconds + kMarginSeconds;
  const double now = shared.clock.seconds();
  for (size_t rank = 0; rank < shared.saving.size(); ++rank) {
    const double since = shared.saving[rank].since.load();
    if (since == 0 || now < since + limit) continue;
    comm::Failure failure;
    failure.kind = comm::Failure::Kind::kTimeout;
    failure.message = fmt::format(
        "rank {} has been saving for {:.0f} s: the disk of {} does not answer; the checkpoints "
        "before it are untouched",
        rank, limit, job.folder.path);
    failure.place.rank = static_cast<int64_t>(rank);
    failure.place.operation = "save a checkpoint";
    failure.place.step = shared.saving[rank].step.load();
    return failure;
  }
  return std::nullopt;
}

/// "rank 5 is stage 1 of 2, x 1 of 2"; "" where ranks lie along data alone.
std::string position_text(const Mesh& mesh, int64_t rank) {
  std::string text;
  bool named = false;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size == 1) continue;
    named |= axis.name != "data" && axis.name != "replica";
    text = fmt::format("{} {} of {}{}{}", axis.name, mesh.coordinate(rank, axis.name), axis.size,
                       text.empty() ? "" : ", ", text);
  }
  return named ? fmt::format("rank {} is {}", rank, text) : "";
}

/// Throws a failure of another rank with the place of that one in the mesh.
[[noreturn]] void raise_with_position(comm::Failure failure, const Mesh& mesh) {
  const int64_t rank = failure.place.rank.value_or(-1);
  const std::string text = rank < 0 || rank >= mesh.ranks() ? "" : position_text(mesh, rank);
  if (!text.empty() && !failure.message.ends_with(text)) failure.message += "; " + text;
  comm::raise(failure);
}

/// A rank that fails tells the others before its memory goes: what is under way then ends.
void run_rank(const Job& job, Trainer& trainer, comm::World& world) {
  try {
    trainer.run();
  } catch (...) {
    const comm::Failure failure = comm::current_failure();
    world.abort(failure.message, failure.place, comm::cause_of(failure));
    if (failure.kind == comm::Failure::Kind::kTimeout ||
        failure.kind == comm::Failure::Kind::kPeerLost)
      raise_with_position(failure, job.design.mesh);
    throw;
  }
}

/// Runs the ranks to their end. Every rank that fails writes its flight record, then those that did
/// not come back.

void run_trainers(Shared& shared, const Hooks& hooks, Outcome& outcome) {
  comm::ThreadWorldOptions options;
  options.faults = hooks.faults;
  const Job& job = shared.job;
  options.device = job.device.get();
  const auto worlds = comm::make_thread_worlds(job.design.batch.ranks, job.design.cluster, options);
  if (hooks.on_request)
    hooks.on_request([&](const std::string& kind) { shared.flights.write_all(kind, ""); });
  comm::RankWatch watch;
  watch.overdue = [&] { return overdue_save(job, shared); };
  watch.stuck = [&](const std::exception_ptr& cause, const std::vector<int64_t>&) {
    shared.flights.write_all("stuck", "this rank did not come back after the run had failed");
    outcome = shared.outcome;
    if (hooks.stuck) hooks.stuck(cause);
  };
  const auto end = [&] {
    if (hooks.on_request) hooks.on_request({});
    shared.flights.detach();
  };
  try {
    comm::run_ranks(
        *worlds,
        [&](comm::World& world) {
          try {
            // From before a rank touches its memory for the first time.
            const CoreBinding binding(job.binding.of(world.rank()));
            Trainer trainer(shared, world);
            run_rank(job, trainer, world);
          } catch (...) {
            shared.flights.write_failed(world.rank(), std::current_exception());
            throw;
          }
        },
        watch);
  } catch (...) {
    end();
    throw;
  }
  end();
}

}  // namespace

namespace {

/// What only one rank of the run keeps: the figures of its steps, on disk and so far.
void begin_records(const Job& job, Shared& shared) {
  if (job.finished) return take_history(job, shared.outcome);
  for (const auto& [path, new_path] :
       checkpoint::set_aside_behind(job.folder.path, shared.outcome.first_step))
    shared.observer.set_aside(path, new_path);
  shared.metrics = std::make_unique<report::MetricsWriter>(job.folder.path + "/metrics.jsonl",
                                                           shared.outcome.first_step);
  shared.events = std::make_unique<report::TensorboardWriter>(
      job.folder.path + "/tensorboard", wall_seconds(), shared.outcome.first_step);
  take_history(job, shared.outcome);
  write_summary(job, nullptr);
}

/// A finished run keeps its own summary, unless it ended before it could write one.
void end_records(const Job& job, const Outcome& outcome) {
  if (!job.finished || !summary_is_whole(job)) write_summary(job, &outcome);
}

void begin(const Job& job, Shared& shared) {
  shared.outcome.first_step = job.resume ? job.resume->manifest().step : 0;
  shared.outcome.steps = shared.outcome.first_step;
  shared.outcome.first_tokens = job.resume ? job.resume->manifest().tokens : 0;
  shared.outcome.tokens = shared.outcome.first_tokens;
}

}  // namespace

void train(const Job& job, const Observer& observer, const std::atomic<int>& signal,
           Outcome& outcome, const Hooks& hooks) {
  Shared shared(job, observer, signal, hooks);
  begin(job, shared);
  begin_records(job, shared);
  try {
    run_trainers(shared, hooks, outcome);
  } catch (...) {
    outcome = std::move(shared.outcome);
    throw;
  }
  outcome = std::move(shared.outcome);
  end_records(job, outcome);
  if (job.design.run.output.timeline_steps > 0 && !job.finished)
    write_file_atomically(job.folder.path + "/timeline.json", timelines(job, shared));
}

namespace {

ProcessWatch::Actions watch_actions(Shared& shared, const Hooks& hooks, Outcome& outcome) {
  ProcessWatch::Actions actions;
  actions.overdue = [&shared] { return overdue_save(shared.job, shared); };
  actions.stuck = [&shared, &hooks, &outcome](const std::exception_ptr& cause) {
    shared.flights.write_all("stuck", "this rank did not come back after the run had failed");
    outcome = shared.outcome;
    if (hooks.stuck) hooks.stuck(cause);
  };
  return actions;
}

void run_process(Shared& shared, const ProcessRank& rank, Outcome& outcome) {
  const Hooks& hooks = rank.hooks;
  if (hooks.on_request)
    hooks.on_request([&](const std::string& kind) { shared.flights.write_all(kind, ""); });
  const auto end = [&] {
    if (hooks.on_request) hooks.on_request({});
    shared.flights.detach();
  };
  const auto fail = [&](const std::string& reason, const ErrorPlace& place) {
    rank.world.abort(reason, place);
    shared.flights.write_failed(rank.world.rank(), std::current_exception());
    end();
  };
  try {
    const ProcessWatch watch(rank.world, watch_actions(shared, hooks, outcome));
    const CoreBinding binding(shared.job.binding.of(rank.world.rank()));
    Trainer trainer(shared, rank.world, rank.window);
    run_rank(shared.job, trainer, rank.world);
    // Who left now would leave no record of a rank that is lost at the end.
    int64_t left = 1;
    const Run& run = shared.job.design.run;
    comm::sum_over_ranks(rank.world, {&left, 1},
                         {"end the run", run.train.steps, run.runtime.deadline_seconds});
  } catch (const Error& error) {
    fail(error.what(), error.place());
    throw;
  } catch (const std::exception& error) {
    fail(error.what(), {});
    throw;
  }
  end();
}

}  // namespace

void train_rank(const Job& job, const Observer& observer, const std::atomic<int>& signal,
                Outcome& outcome, const ProcessRank& rank) {
  const int64_t own = rank.world.rank();
  Shared shared(job, observer, signal, rank.hooks, own);
  shared.save_token = rank.save_token;
  begin(job, shared);
  if (own == 0) begin_records(job, shared);
  try {
    run_process(shared, rank, outcome);
  } catch (...) {
    outcome = std::move(shared.outcome);
    throw;
  }
  outcome = std::move(shared.outcome);
  const std::vector<std::string> parts = rank.gather(rank_part(outcome, own).dump());
  for (size_t at = 1; at < parts.size(); ++at) {
    const int64_t other = static_cast<int64_t>(at);
    add_rank_part(outcome, other, Json::parse(parts[at], "the outcome of a rank"));
    const program::Program& step = program::class_of(job.design.round.classes, other);
    outcome.state_bytes[at] = program::resident_memory(step, other);
    outcome.predicted_peak_bytes[at] = predict::peak_memory(job.design, other).total();
  }
  if (own == 0) end_records(job, outcome);
  if (job.design.run.output.timeline_steps > 0 && !job.finished)
    write_file_atomically(fmt::format("{}/timeline-rank-{:05}.json", job.folder.path, own),
                          trace::chrome_trace({timeline_of(job, shared, own)}));
}

}  // namespace strait::train
