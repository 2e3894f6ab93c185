// What a trainer does between steps: evaluation, checkpoints, and the end of the run.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iterator>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/process_memory.h"
#include "strait/comm/bookkeeping.h"
#include "strait/comm/wait_table.h"
#include "strait/config/print.h"
#include "strait/persist/parameter_hash.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/train/trainer.h"

namespace strait::train {
namespace {

/// Windows that an evaluation covers.
int64_t evaluated_windows(const Job& job) {
  const int64_t all = job.validation->windows();
  const int64_t batches = job.design.run.evaluation.batches;
  return batches == 0 ? all : std::min(all, batches * job.design.batch.global_batch_size);
}

}  // namespace

void Trainer::evaluate(int64_t step) {
  const int64_t windows = evaluated_windows(job_);
  if (windows == 0) return;
  state_.drain();
  count_traffic(step);
  const int64_t batch = job_.design.batch.micro_batch_size;
  const int64_t stride = batch * job_.design.batch.data_ranks;
  double loss_sum = 0, count = 0;
  for (int64_t first = 0; first < windows; first += stride) {
    evaluated_window_ = first + job_.design.layout.position(rank_) * batch;
    // The first batch makes secondary copies; a step after it makes its own all the same, so that
    // what training moves does not depend on evaluations.
    runner_.run(strategy::kForEvaluation, step);
    const auto agreed = state_.read<double, strategy::kNumAgreed>("agreed");
    loss_sum += agreed[strategy::kLossSum];
    count += agreed[strategy::kLossCount];
    if (agreed[strategy::kStopRequests] > 0 && first + stride < windows) {
      count = 0;  // asked to stop in between: a part of the validation is no validation
      break;
    }
  }
  evaluated_window_.reset();
  Ledger discarded;
  runner_.drain_ledger(discarded);
  if (count == 0) return;
  validation_loss_ = loss_sum / count;
  evaluated_ = true;
  if (!lead()) return;
  shared_.outcome.validation.push_back({step, validation_loss_});
  shared_.observer.evaluated(step, validation_loss_);
}

/// Windows beyond the last one count for nothing.
void Trainer::fill_window(int64_t first, BatchBuffer& buffer) const {
  const int64_t batch = job_.design.batch.micro_batch_size;
  job_.validation->fill(first, batch, buffer);
  const int64_t inside = std::clamp<int64_t>(evaluated_windows(job_) - first, 0, batch);
  std::fill(buffer.targets.begin() + inside * job_.validation->context(), buffer.targets.end(),
            kIgnoredTarget);
}

void Trainer::prepare_texts() {
  Run resolved = job_.design.run;
  resolved.output.run_dir = job_.folder.path;
  texts_ = {{"tokenizer.json", job_.corpus->tokenizer->serialize()},
            {"run.toml", print_run(resolved)}};
}

checkpoint::SaveDescription Trainer::describe(int64_t step) {
  const strategy::Design& design = job_.design;
  checkpoint::SaveDescription description;
  checkpoint::Manifest& manifest = description.manifest;
  manifest.step = step;
  manifest.sequences_consumed = static_cast<int64_t>(progress(strategy::kSequencesDone));
  manifest.tokens = manifest.sequences_consumed * design.run.model.shape.context;
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
  description.texts = texts_;
  return description;
}

void Trainer::guard_save(const std::string& phase, int64_t step,
                         const std::function<void()>& body) {
  Saving& saving = shared_.saving[rank_];
  if (comm::WaitRow* row = world_.waits()) row->busy(phase, step, -1);
  saving.step = step;
  saving.since = now_seconds();
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

void Trainer::save_unchanged() {
  const std::string path =
      job_.folder.path + "/checkpoints/" + checkpoint::checkpoint_name(first_step_);
  std::error_code none;
  const bool stands = job_.resume && std::filesystem::equivalent(job_.resume->path(), path, none);
  if (!stands) return save(first_step_);
  if (lead()) shared_.outcome.checkpoint = path;
}

void Trainer::save(int64_t step) {
  if (saved_step_ == step) return;
  const double begin = now_seconds();
  state_.drain();
  persist::HostImages images;
  std::vector<checkpoint::ShardView> shards = units_->shards(images);
  std::optional<checkpoint::SaveDescription> description;
  if (lead()) {
    description = describe(step);
    std::ranges::move(values_->shards(), std::back_inserter(shards));
  }
  if (writer_) {
    const std::optional<std::string> before = saved_step_ >= 0 ? writer_->finish() : std::nullopt;
    if (lead() && before) shared_.observer.saved(*before);
    writer_->start(step, shards, std::move(description));
  } else {
    const std::string path = saves_.save(step, shards, std::move(description));
    if (lead()) {
      shared_.outcome.checkpoint = path;
      shared_.observer.saved(path);
    }
  }
  saved_step_ = step;
  if (lead()) shared_.outcome.save_stall_seconds.push_back(now_seconds() - begin);
}

void Trainer::finish(int64_t step) {
  state_.drain();
  count_traffic(step);
  if (writer_) {
    const std::optional<std::string> path = writer_->finish();
    if (lead() && path) {
      shared_.outcome.checkpoint = *path;
      shared_.observer.saved(*path);
    }
  }
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
  if (lead()) shared_.outcome.parameter_hash = hash;
}

}  // namespace strait::train
