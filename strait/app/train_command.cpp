// strait train: plan, progress, result.
#include <fmt/format.h>

#include <cmath>

#include "strait/app/local_rates.h"
#include "strait/app/run_job.h"
#include "strait/app/signals.h"
#include "strait/cli/plan_text.h"
#include "strait/cli/report_envelope.h"
#include "strait/config/parse.h"
#include "strait/report/progress.h"
#include "strait/sequence/report.h"
#include "strait/shape/modules.h"
#include "strait/threads/cores.h"
#include "strait/train/train.h"

namespace strait::app {
namespace {

train::Observer observer_of(const Job& job, report::Progress& progress, cli::Output& output) {
  train::Observer observer;
  observer.step = [&](const report::StepMetrics& metrics) {
    std::string text = progress.advance(metrics);
    while (text.ends_with('\n')) text.pop_back();
    if (!text.empty()) output.line(text);
    if (!metrics.sequence_plan.is_null())
      output.line(
          fmt::format("plan {}  {}", metrics.step, sequence::plan_text(metrics.sequence_plan)));
    output.progress(progress.bar(metrics, output.columns()));
  };
  observer.saved = [&](const std::string& path) { output.line("saved " + path); };
  observer.warned = [&](const std::string& what) { output.line("warning     " + what); };
  observer.set_aside = [&](const std::string& path, const std::string& new_path) {
    output.line(fmt::format("set aside   {}, now {}: the run has gone back to step {}", path,
                            new_path, job.resume->manifest().step));
  };
  return observer;
}

std::string overlap_text(const train::Overlap& overlap) {
  const auto share = [](double value) {
    return std::isnan(value) ? "not measurable" : fmt::format("{:.1f} %", 100 * value);
  };
  return fmt::format(
      "hidden of communication: {} against the floor, {} without it; {:.4g} s per step, {:.4g} s "
      "with nothing hidden, {:.4g} s with nothing awaited",
      share(overlap.hidden_share()), share(overlap.hidden_share_without_floor()), overlap.seconds,
      overlap.serial_seconds, overlap.floor_seconds);
}

void print_summary(const Job& job, const train::Outcome& outcome, cli::Output& output) {
  if (!outcome.validation.empty()) {
    const double loss = outcome.validation.back().loss;
    const double bits = train::bits_per_byte(job, loss);
    output.line(fmt::format("validation loss {:.4f} {}", loss, loss_unit(job.design.run.model)) +
                (std::isfinite(bits) ? fmt::format(", {:.3f} bits per byte", bits) : ""));
  }
  if (job.design.run.checkpoint.keep_best && !outcome.best_checkpoint.empty())
    output.line("best        " + outcome.best_checkpoint);
  if (outcome.overlap) output.line("overlap     " + overlap_text(*outcome.overlap));
  if (outcome.backend != "nccl" && outcome.steps > outcome.first_step) {
    const double steps = static_cast<double>(outcome.steps - outcome.first_step);
    const double network = static_cast<double>(outcome.traffic.network_bytes()) / steps;
    const double all = static_cast<double>(outcome.traffic.bytes()) / steps;
    output.line(fmt::format("crossed     {} per step through shared memory, {} over a network",
                            cli::bytes_text(all - network), cli::bytes_text(network)));
  }
  const double utilization = train::model_flops_utilization(job, outcome);
  if (utilization > 1)
    output.line(fmt::format(
        "warning     MFU is {:.0f} %, above 100 %: the peak of {:.4g} GFLOP/s ({}) is less than "
        "this "
        "machine can do",
        100 * utilization, job.peak_flops_per_second / 1e9, job.design.cluster.rates_source));
  for (const persist::ChosenSettings& chosen : outcome.settings)
    if (chosen.choice.error > chosen.choice.allowed_error)
      output.line(fmt::format(
          "warning     the settings of layers chosen after step {} lose {:.3g} times what "
          "lgreco.alpha = {} allows: no others lose less",
          chosen.step, chosen.choice.error / chosen.choice.allowed_error,
          job.design.run.lgreco.alpha));
  if (outcome.steps_skipped > 0)
    output.line(fmt::format("left out    {} of {} steps: loss or gradient not finite",
                            outcome.steps_skipped, outcome.steps - outcome.first_step));
  output.line(fmt::format("stopped by {} after {} steps; run folder {}, checkpoint {}",
                          outcome.stopped_by, outcome.steps, job.folder.path,
                          outcome.checkpoint.empty() ? "none" : outcome.checkpoint));
}

void print_start(const Job& job, cli::Output& output) {
  for (const std::string& line :
       cli::plan_lines(job.design, job.simulated, job.cost, job.corpus.get()))
    output.line(line);
  const kernel::ProductChoice& products = job.design.run.runtime.chosen;
  if (products.products != kernel::NarrowProducts::kAutomatic)
    output.line(fmt::format("products    {} by {}: {}", job.design.run.train.precision,
                            kernel::product_name(products.products), products.reason));
  output.line("cores       " + job.binding.text);
  const TokenPart &training = job.corpus->training, &validation = job.corpus->validation;
  std::string data = fmt::format(
      "data        {}: {} training and {} validation tokens, vocabulary {}", job.corpus->source,
      training.tokens.size(), validation.tokens.size(), job.design.shape.vocabulary);
  if (training.num_documents() > 0)
    data +=
        fmt::format(", {} and {} documents{}", training.num_documents(), validation.num_documents(),
                    training.has_documents() ? "" : " in one stream");
  output.line(data);
  if (job.resume)
    output.line(fmt::format("resumed     from {} at step {}", job.resume->path(),
                            job.resume->manifest().step));
  for (const ResumeChange& change : job.changes)
    output.line(fmt::format("changed     {}: {}, was {}", change.key, change.is, change.was));
  if (job.finished)
    output.line(
        "finished    nothing is left to train; what stands in the run folder stays as it is");
}

}  // namespace

Json run_job(const Job& job, cli::Output& output, train::Hooks hooks, const RunRanks& run_ranks) {
  const Run& run = job.design.run;
  print_start(job, output);
  train::Outcome outcome;
  outcome.first_step = job.resume ? job.resume->manifest().step : 0;
  report::ProgressOptions options;
  options.total_steps = run.train.steps;
  options.first_step = outcome.first_step;
  options.log_every_steps = run.output.log_every_steps;
  options.prediction_note = prediction_note(job.design.cluster);
  report::Progress progress(options);
  const train::Observer observer = observer_of(job, progress, output);
  hooks.stuck = [&](const std::exception_ptr& cause) {
    outcome.stopped_by = "error";
    output.leave(cause, train::outcome_json(job, outcome));
  };
  int signal = 0;
  try {
    signal = run_ranks(observer, outcome, hooks);
  } catch (...) {
    outcome.stopped_by = "error";
    output.partial() = train::outcome_json(job, outcome);
    throw;
  }
  outcome.stopped_by =
      outcome.steps < run.train.steps && signal != 0 ? signal_name(signal) : "steps";
  print_summary(job, outcome, output);
  return train::outcome_json(job, outcome);
}

namespace {

/// A prediction knows nothing of threads that take turns.
void warn_of_crowd(int64_t ranks, cli::Output& output) {
  constexpr int64_t kCrowd = 16;  // ranks of a core
  const int64_t cores = available_cores();
  if (ranks > kCrowd * cores)
    output.line(
        fmt::format("warning     {} ranks take turns on {} cores: a step takes far longer "
                    "than predicted, as every collective visits all pairs of ranks",
                    ranks, cores));
}

}  // namespace

Json train_command(const cli::Command& command, cli::Output& output) {
  return train_with(command, output, {});
}

Json train_with(const cli::Command& command, cli::Output& output, train::Hooks hooks) {
  const comm::Launch launch = comm::find_launch();
  if (launch.launched()) return train_on_processes(command, launch, output, std::move(hooks));
  Run run = load_run(command.path, command.sets);
  if (run.runtime.backend == "mpi" || run.runtime.backend == "nccl")
    return train_on_processes(command, launch, output, std::move(hooks));
  const StopSignals signals;
  DumpSignals dumps;
  use_local_products(run);
  use_local_rates(run, available_cores());
  cli::require_folder_of(command.json, run.output.run_dir);
  const Job job = make_job(run, command.ranks.value_or(1));
  warn_of_crowd(job.design.batch.ranks, output);
  hooks.on_request = [&](const auto& dump) { dumps.set(dump); };
  return run_job(
      job, output, std::move(hooks),
      [&](const train::Observer& observer, train::Outcome& outcome, const train::Hooks& all_hooks) {
        train::train(job, observer, signals.received(), outcome, all_hooks);
        return signals.received().load();
      });
}

}  // namespace strait::app
