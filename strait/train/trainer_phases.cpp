// What a trainer does between steps: evaluation, checkpoints, and the end of the run.
#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <iterator>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/process_memory.h"
#include "strait/comm/bookkeeping.h"
#include "strait/comm/wait_table.h"
#include "strait/config/document_rows.h"
#include "strait/config/print.h"
#include "strait/persist/parameter_hash.h"
#include "strait/sequence/balanced.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/train/trainer.h"

namespace strait::train {

ValidationPlan Trainer::validation_plan() const {
  const Resolved& batch = job_.design.batch;
  ValidationPlan plan{evaluated_windows(*job_.validation, job_.design.run), batch.micro_batch_size,
                      batch.data_ranks};
  if (!documents_) return plan;
  plan.row_tokens = batch.sequence_tokens;
  const int64_t context = job_.validation->context(), ranks = job_.design.run.mesh.axes.sequence;
  plan.row_windows = document_rows(job_.design.run, batch.data_ranks).documents / context;
  // As many as ranks hold however their documents fall.
  if (planned_)
    while (plan.row_windows > 1 && sequence::enough_capacity(plan.row_windows * context, ranks) >
                                       batch.sequence_tokens / ranks)
      --plan.row_windows;
  return plan;
}

bool Trainer::evaluate(int64_t step) {
  const ValidationPlan plan = validation_plan();
  if (plan.windows == 0) return true;
  state_.drain();
  collect_traffic();
  const int64_t position = job_.design.layout.batch_position(rank_);
  runner_.run(strategy::kForShow, step);
  const std::optional<double> loss = validation_loss(plan, state_, [&](int64_t first) {
    if (planned_) {
      state_.drain();
      count_between_steps();
      save_if_refused(step, step, [&] {
        planned_->begin_windows(plan, first + position * plan.windows_of_rank(), step);
      });
    }
    evaluated_window_ = first + position * plan.windows_of_rank();
    // The first batch makes secondary copies; a step after it makes its own all the same, so that
    // what training moves does not depend on evaluations.
    runner_.run(strategy::kForEvaluation, step);
  });
  evaluated_window_.reset();
  runner_.run(strategy::kForShow, step);
  state_.drain();
  count_between_steps();
  if (loss) note_validation(step, *loss);
  return loss || state_.read<double, strategy::kNumAgreed>("agreed")[strategy::kStopRequests] == 0;
}

bool Trainer::make_up_evaluation(int64_t step) {
  const Run& run = job_.design.run;
  const bool due = run.evaluation.every_steps > 0 && step > 0 &&
                   step % run.evaluation.every_steps == 0 && job_.resume &&
                   job_.resume->path().starts_with(job_.folder.path + "/");
  if (!due || checkpoint::validation_loss_of(job_.resume->manifest())) return true;
  if (!evaluate(step)) return false;
  if (evaluated_step_ != step) return true;
  if (lead())
    if (const auto metrics = shared_.metrics->add_validation(step, validation_loss_))
      shared_.events->append(*metrics, wall_seconds());
  if (is_best_ && run.checkpoint.keep_best)
    guard_save("save a checkpoint", step, [&] { save(step); });
  return true;
}

void Trainer::note_validation(int64_t step, double loss) {
  validation_loss_ = loss;
  evaluated_step_ = step;
  is_best_ = std::isfinite(loss) && (!best_validation_loss_ || loss < *best_validation_loss_);
  if (is_best_) best_validation_loss_ = loss;
  if (!lead()) return;
  shared_.outcome.validation.push_back({step, validation_loss_});
  shared_.observer.evaluated(step, validation_loss_);
}

void Trainer::adapt(int64_t step) {
  if (!settings_) return;
  const auto received = [&](strategy::LayerSettings& settings) {
    if (shared_.hooks.settings_received) shared_.hooks.settings_received(rank_, settings);
  };
  const persist::ChosenSettings* chosen = settings_->choose_if_due(step, received);
  if (chosen != nullptr && lead()) shared_.outcome.settings.push_back(*chosen);
}

void Trainer::resume_settings() {
  const Json* saved = job_.resume->manifest().extra.find("layer_settings");
  if (!settings_ || saved == nullptr ||
      saved->at("codec").as_string() != job_.design.run.compression.codec)
    return;
  settings_->resume(persist::chosen_from_json(saved->at("chosen"), shared_.adapted->layers(),
                                              job_.resume->path()));
  if (lead()) shared_.outcome.settings = {*settings_->chosen()};
}

void Trainer::prepare_texts() {
  Run resolved = job_.design.run;
  resolved.output.run_dir = job_.folder.path;
  texts_ = {{"tokenizer.json", job_.corpus->tokenizer->serialize()},
            {"run.toml", print_run(resolved)}};
}

checkpoint::SaveDescription Trainer::describe(int64_t step, bool due) {
  const strategy::Design& design = job_.design;
  checkpoint::SaveDescription description;
  checkpoint::Manifest& manifest = description.manifest;
  manifest.step = step;
  manifest.sequences_consumed = static_cast<int64_t>(progress(strategy::kSequencesDone));
  manifest.tokens = tokens_done_;
  manifest.ranks = design.batch.ranks;
  manifest.placement = Json(design.placement.preset);
  manifest.mesh = mesh_json(design.mesh);
  manifest.model = checkpoint::model_json(design.run.model, design.shape.vocabulary);
  manifest.seed = static_cast<int64_t>(design.run.seed);
  manifest.precision = design.run.train.precision;
  manifest.parameters = design.shape.parameters();
  manifest.units = checkpoint::unit_records(design.shape);
  manifest.values = values_->records();
  manifest.extra = Json::object({{"data_hash", job_.data_hash}});
  if (documents_) {
    const BatchPosition next = documents_->position(manifest.sequences_consumed);
    manifest.extra["documents"] =
        Json::object({{"epoch", next.epoch}, {"document", next.document}, {"token", next.token}});
  }
  if (settings_ && settings_->chosen())
    manifest.extra["layer_settings"] = Json::object(
        {{"codec", design.run.compression.codec},
         {"chosen", persist::to_json(*settings_->chosen(), shared_.adapted->layers())}});
  if (design.policy.delay > 0 && landed_step_ >= 0) manifest.extra["landed_step"] = landed_step_;
  if (!job_.modules_hash.empty()) manifest.extra["modules_hash"] = job_.modules_hash;
  if (evaluated_step_ == step && std::isfinite(validation_loss_))
    checkpoint::record_validation(manifest, validation_loss_, !due);
  description.texts = texts_;
  return description;
}

void Trainer::guard_save(const std::string& phase, int64_t step,
                         const std::function<void()>& body) {
  Saving& saving = shared_.saving[rank_];
  if (comm::WaitRow* row = world_.waits()) row->busy(phase, step, -1);
  saving.step = step;
  saving.since = shared_.clock.seconds();
  try {
    if (shared_.hooks.during_save) shared_.hooks.during_save(rank_, step);
    body();
  } catch (Error& error) {
    ErrorPlace& place = error.place();
    if (!place.operation) place.operation = phase;
    if (!place.step) place.step = step;
    throw;
  }
  saving.since = 0;
}

bool Trainer::any_asked_to_stop(int64_t step) {
  int64_t asked = shared_.signal.load() != 0 ? 1 : 0;
  comm::sum_over_ranks(world_, {&asked, 1},
                       {"agree to stop before the first step", step, site_.deadline_seconds});
  return asked > 0;
}

void Trainer::save_beside_training() {
  persist::HostImages images;
  const int64_t copy = job_.device ? 0 : checkpoint::snapshot_bytes(units_->shards(images));
  if (copy <= job_.spare_memory_bytes)
    writer_ = std::make_unique<checkpoint::SnapshotWriter>(saves_);
  else if (lead())
    shared_.observer.warned(fmt::format(
        "checkpoint.asynchronous cannot take effect: a copy of the state, {:.3g} GB, does not fit "
        "beside what training needs; steps wait for checkpoints",
        static_cast<double>(copy) / 1e9));
}

void Trainer::save_unchanged() {
  const std::string path =
      job_.folder.path + "/checkpoints/" + checkpoint::checkpoint_name(first_step_);
  std::error_code none;
  const bool stands = job_.resume && std::filesystem::equivalent(job_.resume->path(), path, none);
  if (!stands) return save(first_step_);
  if (lead()) shared_.outcome.checkpoint = path;
}

void Trainer::save(int64_t step, bool due) {
  if (saved_step_ == step) return;
  const double begin = now_seconds();
  state_.drain();
  persist::HostImages images;
  std::vector<checkpoint::ShardView> shards = units_->shards(images);
  std::optional<checkpoint::SaveDescription> description;
  if (lead()) {
    description = describe(step, due);
    std::ranges::move(values_->shards(), std::back_inserter(shards));
  }
  if (writer_) {
    if (saved_step_ >= 0) note_saved(writer_->finish());
    writer_->start(step, shards, std::move(description));
  } else {
    note_saved(saves_.save(step, shards, std::move(description)));
  }
  saved_step_ = step;
  if (lead()) shared_.outcome.save_stall_seconds.push_back(now_seconds() - begin);
}

void Trainer::finish_writing() {
  if (writer_) clock_.apart(saving_seconds_, [&] { note_saved(writer_->finish()); });
}

void Trainer::note_saved(const std::optional<std::string>& path) {
  if (!lead() || !path) return;
  shared_.outcome.checkpoint = *path;
  shared_.observer.saved(*path);
}

void Trainer::save_if_refused(int64_t step, int64_t refused, const std::function<void()>& begin) {
  try {
    begin();
  } catch (UserError& error) {
    error.place().step = refused;
    if (step > first_step_)
      guard_save("save a checkpoint", step, [&] {
        save(step);
        finish_writing();
      });
    throw;
  }
}

void Trainer::finish() {
  state_.drain();
  collect_traffic();
  traffic_.merge(pending_);
  finish_writing();
  shared_.outcome.pool_peak_bytes[rank_] = pool_.peak_bytes();
  shared_.outcome.exposed_shares[rank_] =
      busy_seconds_ > 0 ? exposed_seconds_ / busy_seconds_ : 0.0;
  const std::string hash = persist::parameter_hash(*units_, job_.design.shape, site_);
  {
    const std::lock_guard lock(shared_.mutex);
    shared_.outcome.traffic.merge(traffic_);
    comm::bookkeeping_lane(world_).drain_ledger(shared_.outcome.bookkeeping);
  }
  if (lead() || shared_.processes) shared_.outcome.peak_resident_bytes = peak_resident_bytes();
  if (!lead()) return;
  shared_.outcome.parameter_hash = hash;
  shared_.outcome.wall.saving = saving_seconds_;
  if (const auto best = checkpoint::best_checkpoint(job_.folder.path))
    shared_.outcome.best_checkpoint = best->path;
}

}  // namespace strait::train
