#include "strait/train/planned_batches.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/comm/bookkeeping.h"
#include "strait/config/document_rows.h"
#include "strait/config/keys.h"
#include "strait/sequence/balanced.h"
#include "strait/sequence/report.h"
#include "strait/strategy/compose/design.h"
#include "strait/threads/cores.h"

namespace strait::train {
namespace {

using strategy::kEvaluation;
using strategy::kEvaluationUnchanged;
using strategy::kSteady;
using strategy::kUnchanged;

program::ProgramSet own_classes(const program::ProgramSet& all, int64_t rank) {
  program::ProgramSet own;
  own.rules = all.rules;
  for (const program::StepKind& kind : all.kinds)
    own.kinds.push_back({kind.name, {program::class_of(kind.classes, rank)}});
  return own;
}

/// Documents in windows of the validation part: one row of a window each, where it has borders.
struct WindowDocument {
  int64_t begin = 0, length = 0;  // in the buffer
};
std::vector<WindowDocument> documents_in(const BatchBuffer& windows, int64_t context) {
  std::vector<WindowDocument> documents;
  for (int64_t at = 0; at < std::ssize(windows.inputs); ++at) {
    const int64_t place = at % context;
    const int64_t start =
        windows.document_starts.empty() ? 0 : windows.document_starts[static_cast<size_t>(at)];
    if (place == start) documents.push_back({at, 0});
    ++documents.back().length;
  }
  return documents;
}

}  // namespace

PlannedBatches::PlannedBatches(const Job& job, int64_t rank, comm::World& world,
                               DocumentLoader& documents, runtime::Runner& runner,
                               const LengthsRead& lengths_read)
    : job_(job),
      rank_(rank),
      world_(world),
      documents_(documents),
      runner_(runner),
      base_(own_classes(job.design.programs, rank)),
      lengths_read_(lengths_read),
      cores_(cores_before_binding()) {
  const Layout& layout = job.design.layout;
  for (int64_t other = 0; other < world.size(); ++other)
    if (layout.batch_position(other) == layout.batch_position(rank)) row_ranks_.push_back(other);
}

void PlannedBatches::begin_batch(int64_t batch, int64_t step) {
  const double began = now_seconds();
  evaluates_ = false;
  batch_ = batch;
  attention_seconds_ = 0;
  Prepared prepared = prepared_batch(batch);
  planning_seconds_ = prepared.seconds;
  take_up(std::move(prepared), training_, step + 1);
  waited_seconds_ = now_seconds() - began;
  if (step + 1 < job_.design.run.train.steps) plan_ahead(batch + 1);
}

void PlannedBatches::begin_windows(const ValidationPlan& validation, int64_t first, int64_t step) {
  evaluates_ = true;
  ValidationPlan flat = validation;
  flat.row_tokens = 0;  // windows as they are
  train::fill_windows(*job_.validation, flat, first, windows_);
  std::vector<int64_t> lengths;
  for (const WindowDocument& document : documents_in(windows_, job_.validation->context()))
    lengths.push_back(document.length);
  take_up(prepare(lengths, {kEvaluation, kEvaluationUnchanged}, standing(evaluation_)), evaluation_,
          step);
}

PlannedBatches::Prepared PlannedBatches::prepare(const std::vector<int64_t>& lengths,
                                                 const std::vector<std::string>& kinds,
                                                 std::optional<uint64_t> standing) const {
  const double began = now_seconds();
  const strategy::Design& design = job_.design;
  Prepared prepared;
  std::shared_ptr<const sequence::Plan> plan;
  try {
    plan = design.planner->plan(lengths);
  } catch (const UserError& error) {
    if (error.place().key != "sequence.capacity_tokens") throw;
    const sequence::RankGrid grid{1, design.mesh.axis("sequence").size};
    prepared.lacking_capacity = sequence::most_tokens(sequence::balanced_plan(lengths, grid));
    return prepared;
  }
  Planned& planned = prepared.planned;
  planned.plan = plan;
  planned.hash = sequence::plan_hash(*plan);
  if (planned.hash != standing) {
    planned.layout = sequence::rank_layout(*plan, design.layout.sequence_place(rank_).coordinate);
    for (const sequence::Held& held : planned.layout.held)
      planned.parts.push_back({held.document, held.span.begin, held.span.end});
    for (const std::string& kind : kinds)
      prepared.programs.push_back({kind, {strategy::compose_for_plan(design, kind, rank_, plan)}});
  }
  prepared.seconds = now_seconds() - began;
  return prepared;
}

PlannedBatches::Prepared PlannedBatches::prepare_batch(int64_t batch,
                                                       std::optional<uint64_t> standing) const {
  std::vector<int64_t> lengths =
      documents_.lengths(batch, job_.design.layout.batch_position(rank_));
  if (lengths_read_) lengths_read_(rank_, lengths);
  return prepare(lengths, {kSteady, kUnchanged}, standing);
}

void PlannedBatches::plan_ahead(int64_t batch) {
  ahead_batch_ = batch;
  const auto work = [this, batch, known = standing(training_)] {
    run_on(cores_);
    return prepare_batch(batch, known);
  };
  try {
    ahead_ = std::async(std::launch::async, work);
  } catch (const std::system_error&) {
    // No thread to be had: the step will wait for the plan.
  }
}

PlannedBatches::Prepared PlannedBatches::prepared_batch(int64_t batch) {
  if (ahead_.valid() && ahead_batch_ == batch) return ahead_.get();
  ahead_ = {};  // of a step that is not the next one: waits for it
  return prepare_batch(batch, standing(training_));
}

std::optional<uint64_t> PlannedBatches::standing(const std::optional<Planned>& planned) {
  return planned ? std::optional(planned->hash) : std::nullopt;
}

void PlannedBatches::take_up(Prepared prepared, std::optional<Planned>& planned, int64_t step) {
  agree(prepared, step);
  if (!prepared.programs.empty()) {
    planned = std::move(prepared.planned);
    for (program::StepKind& kind : base_.kinds)
      for (program::StepKind& composed : prepared.programs)
        if (composed.name == kind.name) kind.classes = std::move(composed.classes);
    auto next = std::make_unique<const program::ProgramSet>(base_);
    runner_.replace(*next);
    current_ = std::move(next);
  }
  layout_ = &planned->layout;
}

std::vector<int64_t> PlannedBatches::of_all(const std::vector<int64_t>& values,
                                            const char* question, int64_t step) {
  const size_t count = values.size();
  std::vector<int64_t> all(static_cast<size_t>(world_.size()) * count, 0);
  std::ranges::copy(values, all.begin() + rank_ * std::ssize(values));
  comm::sum_over_ranks(world_, all, {question, step, job_.design.run.runtime.deadline_seconds});
  return all;
}

void PlannedBatches::agree(const Prepared& prepared, int64_t step) {
  const std::vector<int64_t> all =
      of_all({static_cast<int64_t>(prepared.planned.hash), prepared.lacking_capacity},
             "compare plans of the batch", step);
  int64_t lacking = 0;
  for (size_t rank = 0; rank < all.size() / 2; ++rank)
    lacking = std::max(lacking, all[2 * rank + 1]);
  if (lacking > 0) refuse_capacity(lacking);
  std::vector<uint64_t> hashes;
  for (const int64_t rank : row_ranks_)
    hashes.push_back(static_cast<uint64_t>(all[2 * static_cast<size_t>(rank)]));
  const std::string problem = sequence::find_disagreement(hashes);
  if (problem.empty()) return;
  ErrorPlace place;
  place.step = step;
  throw InternalError(fmt::format("ranks {} train on one batch, but of these {}",
                                  fmt::join(row_ranks_, ", "), problem),
                      place);
}

void PlannedBatches::refuse_capacity(int64_t nearest) const {
  const Run& run = job_.design.run;
  const int64_t ranks = run.mesh.axes.sequence;
  const int64_t documents = document_rows(run, job_.design.batch.data_ranks).documents;
  refuse_key(
      run, "sequence.capacity_tokens",
      fmt::format("sequence.capacity_tokens = {}: no split of a row of documents leaves each "
                  "of {} ranks with as few tokens; the nearest valid value is {}; {} holds "
                  "any batch",
                  run.sequence.capacity_tokens, ranks, nearest,
                  std::max(nearest, sequence::enough_capacity(documents, ranks))));
}

Json PlannedBatches::describe(int64_t step) {
  const strategy::BatchPlanner& planner = *job_.design.planner;
  const auto own = static_cast<int64_t>(1e9 * std::exchange(attention_seconds_, 0));
  const std::vector<int64_t> all = of_all({own}, "tell the seconds of attention", step);
  double slowest = 0, sum = 0;
  for (const int64_t rank : row_ranks_) {
    const double seconds = static_cast<double>(all[static_cast<size_t>(rank)]) / 1e9;
    slowest = std::max(slowest, seconds);
    sum += seconds;
  }
  Json json =
      sequence::plan_json(*training_->plan, planner.layer(), planner.price(*training_->plan),
                          job_.design.run.model.shape.layers);
  json["planning_seconds"] = planning_seconds_;
  json["waited_seconds"] = waited_seconds_;
  json["measured"] =
      Json::object({{"computing_slowest_seconds", slowest},
                    {"computing_mean_seconds", sum / static_cast<double>(row_ranks_.size())}});
  json["row"] = job_.design.layout.batch_position(rank_) + 1;
  json["rows"] = job_.design.batch.data_ranks;
  return json;
}

void PlannedBatches::fill(BatchBuffer& buffer) {
  if (evaluates_) return fill_windows(buffer);
  documents_.fill(batch_, job_.design.layout.batch_position(rank_), training_->parts,
                  training_->layout.rows, buffer);
}

void PlannedBatches::fill_windows(BatchBuffer& buffer) const {
  const auto tokens = static_cast<size_t>(evaluation_->layout.rows);
  buffer.inputs.assign(tokens, 0);
  buffer.targets.assign(tokens, kIgnoredTarget);
  buffer.document_starts.clear();
  buffer.sequences.assign(1, windows_.sequences.front());
  const std::vector<WindowDocument> documents = documents_in(windows_, job_.validation->context());
  int64_t to = 0;
  for (const DocumentPart& part : evaluation_->parts) {
    const int64_t begin = documents[static_cast<size_t>(part.document)].begin + part.begin;
    const int64_t count = part.end - part.begin;
    std::copy_n(windows_.inputs.begin() + begin, count, buffer.inputs.begin() + to);
    std::copy_n(windows_.targets.begin() + begin, count, buffer.targets.begin() + to);
    to += count;
  }
}

}  // namespace strait::train
