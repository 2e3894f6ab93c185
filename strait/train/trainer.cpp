#include "strait/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/process_memory.h"
#include "strait/comm/bookkeeping.h"
#include "strait/config/document_rows.h"
#include "strait/config/print.h"
#include "strait/execute/model_settings.h"
#include "strait/model/tensor_blocks.h"
#include "strait/optim/loss_scale.h"
#include "strait/optim/schedule.h"
#include "strait/persist/parameter_hash.h"
#include "strait/predict/predict.h"
#include "strait/shape/model_flops.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/strategy/sharding/unit_values.h"
#include "strait/strategy/sync/kernels.h"
#include "strait/strategy/sync/sync.h"

namespace strait::train {
namespace {

constexpr int64_t kUncountedSteps = 5;  // first steps of a process: caches and pages are cold

int64_t first_batch(const Job& job) {
  return job.resume ? job.resume->manifest().sequences_consumed : 0;
}

/// Where the documents of a checkpoint go on. Earlier versions counted pieces of their context.
BatchPosition saved_position(const Json& saved, const checkpoint::Manifest& manifest) {
  BatchPosition position{saved.at("epoch").as_integer(), saved.at("document").as_integer()};
  if (const Json* piece = saved.find("piece"))
    position.token = piece->as_integer() * manifest.model.at("context").as_integer();
  else
    position.token = saved.at("token").as_integer();
  return position;
}

/// Null without train.global_batch_tokens.
std::unique_ptr<DocumentLoader> document_loader(const Job& job) {
  if (!job.documents) return nullptr;
  const Resolved& batch = job.design.batch;
  const DocumentLoader::Rows rows{batch.global_batch_size, batch.sequence_tokens,
                                  document_rows(job.design.run, batch.data_ranks).documents};
  const Json* saved = job.resume ? job.resume->manifest().extra.find("documents") : nullptr;
  return std::make_unique<DocumentLoader>(
      *job.documents, rows, first_batch(job),
      saved ? saved_position(*saved, job.resume->manifest()) : BatchPosition{});
}

/// The step behind which that was launched which is under way before a step; that step if nothing
/// is.
int64_t launched_before(const strategy::Policy& policy, int64_t step) {
  for (int64_t p = 0; p < policy.fragments; ++p) {
    const program::Turns turns{policy.first_border(p), policy.period, policy.delay};
    if (turns.hold(step)) return step - (step - turns.first) % turns.period;
  }
  return step;
}

/// A NaN has no sign that means anything.
double without_sign(double value) { return std::isnan(value) ? std::abs(value) : value; }

/// What became of the weights, and what the run may do about it.
const char* non_finite_advice(const strategy::Design& design) {
  if (design.run.optimizer.in_backward)
    return "optimizer.in_backward has changed weights: go on from the last checkpoint with a lower "
           "optimizer.learning_rate";
  if (design.policy.local_steps())
    return "the weights were not changed. Lower optimizer.learning_rate";
  return "the weights were not changed. Lower optimizer.learning_rate, or set train.non_finite = "
         "\"skip\"";
}

checkpoint::SessionOptions session_options(const Job& job, const std::string& token, int64_t rank) {
  return {job.folder.path,
          token,
          rank,
          job.design.batch.ranks,
          job.design.run.runtime.deadline_seconds,
          {job.design.run.checkpoint.keep, job.design.run.checkpoint.keep_best}};
}

}  // namespace

Shared::Shared(const Job& the_job, const Observer& the_observer, const std::atomic<int>& the_signal,
               const Hooks& the_hooks, std::optional<int64_t> process_rank)
    : job(the_job),
      observer(the_observer),
      hooks(the_hooks),
      signal(the_signal),
      sent(the_job.design.run.runtime.deadline_seconds),
      processes(process_rank.has_value()),
      flights(the_job.folder.path, processes ? "mpi" : "threads", the_job.design.batch.ranks,
              process_rank.value_or(0) == 0),
      saving(static_cast<size_t>(the_job.design.batch.ranks)) {
  if (job.design.adapt.adapts()) adapted.emplace(job.design);
  if (processes) outcome.backend = job.device ? "nccl" : "mpi";
  const size_t ranks = static_cast<size_t>(job.design.batch.ranks);
  outcome.exposed_shares.resize(ranks);
  outcome.state_bytes.resize(ranks);
  outcome.predicted_peak_bytes.resize(ranks);
  outcome.pool_peak_bytes.resize(ranks);
  recorders.resize(ranks);
}

Trainer::Trainer(Shared& shared, comm::World& world, memory::PageSource* window)
    : shared_(shared),
      job_(shared.job),
      world_(world),
      rank_(world.rank()),
      presence_(shared.sent),
      device_(job_.device.get()),
      queue_(device_ ? device_->make_queue() : nullptr),
      entered_(device_ ? device_->enter(*queue_) : nullptr),
      pool_(device_, window),
      state_(pool_, rank_),
      // A device replaces the blocks, and has element types that ours do not.
      model_(job_.design.layout.local_shape(), device_ ? Dtype::kFloat32 : job_.design.dtype),
      arithmetic_(
          device::make_arithmetic(device_, static_cast<int>(job_.design.batch.threads_per_rank))),
      environment_{model_, job_.design.layout, execute::model_settings(job_.design), *arithmetic_,
                   device_ != nullptr},
      site_{world,
            state_,
            pool_,
            executors_,
            &shared.recorders[rank_],
            job_.design.run.runtime.deadline_seconds,
            &shared.flights.attach(rank_, world.waits())},
      runner_(job_.design.programs, site_),
      saves_(session_options(job_, shared.save_token, rank_)) {
  if (device_) model::use_tensor_blocks(model_, *device_, job_.design.dtype);
  execute::add_block_executors(executors_, environment_,
                               [this](int64_t first, int64_t micro_batch, BatchBuffer& buffer) {
                                 fill_batch(first, micro_batch, buffer);
                               });
  execute::add_coding_executors(executors_, *arithmetic_, job_.design.run.seed);
  documents_ = document_loader(job_);
  if (job_.design.planner) {
    planned_ = std::make_unique<PlannedBatches>(job_, rank_, world_, *documents_, runner_,
                                                shared.hooks.lengths_read);
    environment_.layout_of_batch = planned_->layout();
    if (job_.design.run.sequence.plan)
      environment_.attention_seconds = planned_->attention_seconds();
  }
  execute::add_step_executors(executors_, environment_, rules());
  execute::add_outer_executors(executors_, *arithmetic_, rules());
  execute::add_adapt_executors(executors_, *arithmetic_);
  execute::add_low_rank_executors(executors_, job_.design.run.seed);
  if (shared.hooks.before_op)
    executors_.set_before(
        [this](const runtime::Instance& instance) { shared_.hooks.before_op(rank_, instance); });
  const program::Program& step = program::class_of(job_.design.round.classes, rank_);
  runner_.prepare(strategy::kSteady);
  if (validates_behind()) runner_.prepare(strategy::kValidation);
  for (const strategy::Border& border : strategy::borders_of(job_.design.policy))
    runner_.prepare(strategy::border_kind(border));
  if (shared_.adapted) settings_.emplace(*shared_.adapted, job_.design.adapt, site_, runner_);
  begin_state();
  runner_.run(strategy::kForStart, first_step_);
  state_.drain();
  count_between_steps();
  if (job_.design.run.checkpoint.asynchronous) save_beside_training();
  if (lead()) prepare_texts();
  shared_.outcome.state_bytes[rank_] = program::resident_memory(step, rank_);
  shared_.outcome.predicted_peak_bytes[rank_] = predict::peak_memory(job_.design, rank_).total();
}

Trainer::~Trainer() = default;

execute::StepRules Trainer::rules() {
  const Run& run = job_.design.run;
  execute::StepRules rules;
  rules.optimizer = run.optimizer;
  rules.clip_norm = run.train.clip_norm;
  rules.total_steps = run.train.steps;
  rules.global_batch_size = documents_ ? 1 : job_.design.batch.global_batch_size;
  rules.scales_loss = job_.design.dtype == Dtype::kFloat16;
  rules.stop_requested = [&signal = shared_.signal] { return signal.load() != 0; };
  if (documents_ || (job_.loader && job_.corpus->training.has_documents()))
    rules.token_weight = [this](int64_t first) {
      const Resolved& sizes = job_.design.batch;
      const int64_t counted = documents_ ? documents_->counted(first)
                                         : job_.loader->counted(first, sizes.global_batch_size);
      return static_cast<double>(sizes.global_batch_size * sizes.sequence_tokens) /
             static_cast<double>(std::max<int64_t>(counted, 1));
    };
  return rules;
}

void Trainer::begin_state() {
  const strategy::Design& design = job_.design;
  units_ =
      std::make_unique<persist::UnitState>(design.programs, design.shape, design.layout, state_);
  values_ = std::make_unique<persist::RunValues>(design.programs.program(strategy::kSteady, rank_),
                                                 state_);
  begin_progress();
  best_validation_loss_ = job_.folder.best_validation_loss;
  if (!job_.resume) return units_->initialize(design.run.seed);
  units_->load(*job_.resume);
  values_->load(*job_.resume);
  job_.resume->verify_share(rank_, design.batch.ranks);
  first_step_ = job_.resume->manifest().step;
  tokens_done_ = job_.resume->manifest().tokens;
  resume_settings();
  resume_border();
}

/// What was under way at the end of a run has been taken up there.
void Trainer::resume_border() {
  const strategy::Policy& policy = job_.design.policy;
  if (policy.delay == 0) return;
  if (const Json* landed = job_.resume->manifest().extra.find("landed_step"))
    landed_step_ = landed->as_integer();
  std::array<double, strategy::kNumBorderValues> border{};
  border[strategy::kBorderSenders] = launched_before(policy, first_step_) > landed_step_ ? 1 : 0;
  state_.write("border", border.data(), sizeof(border));
}

void Trainer::begin_progress() {
  std::array<double, strategy::kNumProgress> values{};
  values[strategy::kNextLossScale] = optim::LossScaleOptions{}.initial;
  const checkpoint::Manifest* before = job_.resume ? &job_.resume->manifest() : nullptr;
  if (before != nullptr && before->extra.find("updates") != nullptr) {
    values[strategy::kUpdatesDone] = static_cast<double>(before->extra.at("updates").as_integer());
    values[strategy::kSequencesDone] = static_cast<double>(before->sequences_consumed);
    // A converted checkpoint has none: it begins with the usual one.
    if (const Json* scale = before->extra.find("loss_scale")) {
      values[strategy::kNextLossScale] = scale->as_number();
      values[strategy::kGoodSteps] =
          static_cast<double>(before->extra.at("loss_scale_good_steps").as_integer());
    }
  }
  state_.write("progress", values.data(), sizeof(values));
}

double Trainer::progress(int element) {
  return state_.read<double, strategy::kNumProgress>("progress")[static_cast<size_t>(element)];
}

double Trainer::learning_rate(int64_t step) const {
  return optim::learning_rate(job_.design.run.optimizer, step, job_.design.run.train.steps);
}

void Trainer::run() {
  const Run& run = job_.design.run;
  const int64_t first = first_step_;
  int64_t step = first;
  bool stopped = step < run.train.steps && (any_asked_to_stop(step) || !make_up_evaluation(step));
  if (stopped) guard_save("save a checkpoint", step, [&] { save_unchanged(); });
  clock_.start();
  while (step < run.train.steps && !stopped) {
    shared_.recorders[rank_].record_all(step - first < run.output.timeline_steps);
    StepResult result = train_step(step);
    ++step;
    if (!result.finite) non_finite(step, result);
    adapt(step);
    const bool last = step == run.train.steps;
    stopped = result.stop || (!last && !begins(step));
    const bool due = run.evaluation.every_steps > 0 && step % run.evaluation.every_steps == 0;
    const bool save_due = run.checkpoint.every_steps > 0 && step % run.checkpoint.every_steps == 0;
    if (last) run_between(strategy::kForEnd, step), landed_step_ = step;
    if (due || last || stopped || save_due) state_.drain();  // belongs to the step
    count_traffic(step, last || stopped);
    is_best_ = false;
    if (last || (due && !stopped))
      clock_.apart(evaluation_seconds_, [&] { stopped = !evaluate(step) || stopped; });
    const bool must_save = last || stopped || save_due;
    result.seconds = clock_.lap();
    account(step, result);
    if (must_save || (is_best_ && run.checkpoint.keep_best))
      clock_.apart(saving_seconds_,
                   [&] { guard_save("save a checkpoint", step, [&] { save(step, must_save); }); });
  }
  if (first >= run.train.steps) {
    evaluate(step);
    if (lead() && job_.resume && job_.resume->path().starts_with(job_.folder.path + "/"))
      shared_.outcome.checkpoint = job_.resume->path();
  }
  guard_save("finish the run", step, [&] { finish(); });
  if (run.output.overlap_steps > 0 && !stopped) measure_overlap(step);
}

bool Trainer::begins(int64_t step) {
  return !job_.design.policy.local_steps() ||
         world_.begins_step(step, shared_.signal.load() != 0, site_.deadline_seconds);
}

void Trainer::fill_batch(int64_t first_sequence, int64_t micro_batch, BatchBuffer& buffer) {
  if (planned_) {
    planned_->fill(buffer);
    if (!evaluated_window_ && shared_.observer.loaded) shared_.observer.loaded(step_, buffer);
    return;
  }
  fill_sequences(first_sequence, micro_batch, buffer);
  const AxisPlace place = job_.design.layout.sequence_place(rank_);
  take_share({place.size, place.coordinate, job_.design.batch.sequence_tokens / place.size},
             buffer);
}

void Trainer::fill_sequences(int64_t first_sequence, int64_t micro_batch, BatchBuffer& buffer) {
  if (evaluated_window_)
    return fill_windows(*job_.validation, validation_plan(), *evaluated_window_, buffer);
  const Resolved& batch = job_.design.batch;
  const BatchShare share{batch.global_batch_size, batch.data_ranks,
                         job_.design.layout.batch_position(rank_), batch.micro_batch_size};
  const int64_t first = share.first_sequence(0, micro_batch);
  if (documents_)
    documents_->fill(first_sequence, first, batch.micro_batch_size, buffer);
  else
    job_.loader->fill(first_sequence + first, batch.micro_batch_size, buffer);
  if (shared_.observer.loaded) shared_.observer.loaded(step_, buffer);
}

void Trainer::begin_planned(int64_t step) {
  if (!planned_) return;
  state_.drain();
  collect_traffic();  // the programs that have counted it may be replaced
  save_if_refused(step, step + 1, [&] {
    planned_->begin_batch(static_cast<int64_t>(progress(strategy::kSequencesDone)), step);
  });
}

Trainer::StepResult Trainer::train_step(int64_t step) {
  StepResult result;
  if (validates_behind()) return validated_step(step);
  step_ = step;
  begin_planned(step);
  result.times = runner_.run(strategy::kForStep, step, step + 1);
  if (planned_ && job_.design.run.sequence.plan) result.plan = planned_->describe(step + 1);
  const auto agreed = state_.read<double, strategy::kNumAgreed>("agreed");
  const auto results = state_.read<double, strategy::kNumResults>("results");
  const auto values = state_.read<double, strategy::kNumStepValues>("step");
  result.loss = agreed[strategy::kLossSum] / agreed[strategy::kLossCount];
  result.counted = agreed[strategy::kLossCount] > 0;
  result.not_encoded = agreed[strategy::kNotFinite];
  result.stop = agreed[strategy::kStopRequests] > 0;
  // Of all replicas; between borders they agree beside their programs.
  if (job_.design.policy.local_steps())
    result.stop = state_.read<double, strategy::kNumBorderValues>(
                      "border")[strategy::kBorderStopRequests] > 0;
  result.gradient_norm = results[strategy::kGradientNorm];
  result.finite = results[strategy::kFinite] != 0;
  result.loss_scale = values[strategy::kLossScale];
  result.overflowed =
      scales_loss() && !result.finite && progress(strategy::kNextLossScale) < result.loss_scale;
  return result;
}

void Trainer::non_finite(int64_t step, const StepResult& result) {
  if (!result.counted || (result.overflowed && std::isfinite(result.loss))) return;
  if (job_.design.run.train.non_finite == "skip") return;
  ErrorPlace place;
  if (job_.design.policy.local_steps())
    place.rank = rank_;  // the others may not know
  else if (writer_)
    writer_->finish();  // all ranks stop here: none has to wait in vain
  place.step = step;
  std::string what = fmt::format("the loss is {} and the gradient norm {}",
                                 without_sign(result.loss), without_sign(result.gradient_norm));
  if (result.not_encoded > 0)
    what += fmt::format(", and codecs met {:.0f} numbers that are not finite", result.not_encoded);
  throw NonFinite(fmt::format("step {}: {}; {}", step, what, non_finite_advice(job_.design)),
                  place);
}

void Trainer::collect_traffic() { runner_.drain_ledger(pending_); }

void Trainer::count_traffic(int64_t step, bool last) {
  collect_traffic();
  const int64_t delay = std::max<int64_t>(1, job_.design.policy.delay);
  Ledger ended;
  pending_.take(step, last ? step : step - delay, ended);
  traffic_.merge(ended);
  std::vector<int64_t> sent;
  for (int64_t level = 0; level < std::ssize(job_.design.cluster.levels); ++level)
    sent.push_back(ended.payload_bytes(level));
  share_traffic(step, std::move(sent));
}

void Trainer::share_traffic(int64_t step, std::vector<int64_t> sent) {
  const Resolved& batch = job_.design.batch;
  const strategy::Policy& policy = job_.design.policy;
  const int64_t replicas = policy.local_steps() ? policy.replicas : 1;
  int64_t alike = replicas;
  if (shared_.processes) {
    // Who agrees rarely would wait for the others here, behind what is under way.
    if (under_way_ && bytes_known_) return;
    bytes_known_ = replicas == 1 && !under_way_;
    if (bytes_known_)
      comm::sum_over_ranks(world_, sent, {"bytes sent in a step", step, site_.deadline_seconds});
    else
      alike = batch.ranks;
  } else {
    const Mesh& mesh = job_.design.mesh;
    if (replicas > 1 && mesh.coordinate(rank_, "replica") != mesh.coordinate(0, "replica")) return;
    shared_.sent.add(step, sent);
    if (lead()) sent = shared_.sent.of_all(step, batch.ranks / replicas);
  }
  for (int64_t& bytes : sent) bytes *= alike;
  sent_by_all_ = std::move(sent);
}

runtime::RunTimes Trainer::run_between(const char* purpose, int64_t step,
                                       std::optional<int64_t> named) {
  state_.drain();  // what the step has left under way is the step's
  collect_traffic();
  const runtime::RunTimes times = runner_.run(purpose, step, named);
  state_.drain();
  count_between_steps();
  return times;
}

void Trainer::count_between_steps() {
  const std::lock_guard lock(shared_.mutex);
  runner_.drain_ledger(shared_.outcome.between_steps);
}

void Trainer::account(int64_t step, const StepResult& result) {
  exposed_seconds_ += result.times.exposed_seconds;
  busy_seconds_ += result.seconds;
  tokens_done_ += tokens_of(step);
  if (!lead()) return;
  Outcome& outcome = shared_.outcome;
  outcome.steps = step;
  outcome.losses.push_back(result.loss);
  if (!result.finite) ++outcome.steps_skipped;
  outcome.tokens = tokens_done_;
  const double flops = model_flops_of(step);
  const int64_t here = step - outcome.first_step;
  if (here > kUncountedSteps ||
      job_.design.run.train.steps - outcome.first_step <= kUncountedSteps) {
    outcome.step_seconds.push_back(result.seconds);
    outcome.timed_tokens += tokens_of(step);
    outcome.timed_model_flops += flops;
  }
  outcome.wall = {clock_.seconds(), outcome.wall.steps + result.seconds, evaluation_seconds_,
                  saving_seconds_};
  const report::StepMetrics metrics = metrics_of(step, result, flops);
  shared_.metrics->append(metrics);
  shared_.events->append(metrics, wall_seconds());
  shared_.observer.step(metrics);
}

int64_t Trainer::tokens_of(int64_t step) const {
  const Resolved& batch = job_.design.batch;
  if (!documents_) return batch.global_batch_size * batch.sequence_tokens;
  return documents_->tokens(first_batch(job_) + step - 1 - first_step_);
}

/// Whole documents differ from batch to batch by their length, and so by the work of attention.
double Trainer::model_flops_of(int64_t step) const {
  if (!documents_) return static_cast<double>(tokens_of(step)) * job_.model_flops_per_token;
  return model_flops(job_.design.shape,
                     documents_->lengths(first_batch(job_) + step - 1 - first_step_));
}

report::StepMetrics Trainer::metrics_of(int64_t step, const StepResult& result,
                                        double model_flops) const {
  report::StepMetrics metrics;
  metrics.step = step;
  metrics.loss = result.loss;
  metrics.gradient_norm = result.gradient_norm;
  metrics.skipped = !result.finite;
  metrics.learning_rate = learning_rate(step - 1);
  if (scales_loss()) metrics.loss_scale = result.loss_scale;
  metrics.seconds = result.seconds;
  metrics.exposed_communication_seconds = result.times.exposed_seconds;
  metrics.compute_seconds = result.times.seconds - result.times.exposed_seconds;
  metrics.tokens_per_second = static_cast<double>(tokens_of(step)) / result.seconds;
  metrics.model_flops_utilization = model_flops / result.seconds / job_.peak_flops_per_second;
  for (size_t level = 0; level < sent_by_all_.size(); ++level)
    metrics.bytes_per_level.push_back(
        {job_.design.cluster.levels[level].name, sent_by_all_[level]});
  metrics.memory_bytes = pool_.peak_bytes();
  metrics.resident_bytes = peak_resident_bytes();
  metrics.predicted_seconds = job_.simulated.seconds;
  if (evaluated_step_ == step) metrics.validation_loss = validation_loss_;
  metrics.sequence_plan = result.plan;
  if (settings_ && settings_->chosen() && settings_->chosen()->step == step)
    metrics.layer_settings =
        strategy::setting_names(shared_.adapted->layers(), settings_->chosen()->choice.settings);
  return metrics;
}

}  // namespace strait::train
