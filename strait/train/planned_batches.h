// Batches whose documents a plan spreads over the ranks of the axis sequence: plans, the programs
// composed for them, and what a rank has of each.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strait/comm/communicator.h"
#include "strait/data/document_loader.h"
#include "strait/job/job.h"
#include "strait/runtime/runner.h"
#include "strait/sequence/rank_layout.h"
#include "strait/train/validation.h"

namespace strait::train {

/// Of one rank, on its thread. A plan is another program of its steps: one that differs from the
/// last one's replaces it in the runner. Batch t + 1 is planned, and its program composed, by
/// another thread while batch t is trained on.
class PlannedBatches {
 public:
  /// All outlive it. The job's design has a planner. `lengths_read`: for tests, what a rank has
  /// read of a batch before it plans, on the thread that plans; may be empty.
  using LengthsRead = std::function<void(int64_t rank, std::vector<int64_t>& lengths)>;
  PlannedBatches(const Job& job, int64_t rank, comm::World& world, DocumentLoader& documents,
                 runtime::Runner& runner, const LengthsRead& lengths_read);
  PlannedBatches(const PlannedBatches&) = delete;
  PlannedBatches& operator=(const PlannedBatches&) = delete;

  /// What the rank has of the batch under way.
  const sequence::RankLayout* const* layout() const { return &layout_; }

  /// The steps to come train on a batch, or evaluate windows from `first` on. Compares plans with
  /// the other ranks of the row first: InternalError on all of them that names the rank with
  /// another one. No transfer is under way. UserError (sequence.capacity_tokens, with its line) on
  /// all ranks where a row fits on its ranks in no way; then nothing has begun.
  void begin_batch(int64_t batch, int64_t step);
  void begin_windows(const ValidationPlan& validation, int64_t first, int64_t step);

  /// This rank's rows of what was begun last.
  void fill(BatchBuffer& buffer);

  /// Where executors count the seconds of attention of a step.
  double* attention_seconds() { return &attention_seconds_; }
  /// sequence::plan_json of the batch trained on last, with what its attention took to compute on
  /// the ranks of the row: {"measured": {"computing_slowest_seconds", "computing_mean_seconds"}};
  /// and "planning_seconds", in which this rank has planned and composed, of which the step waited
  /// "waited_seconds", those of comparing among them. "row" of "rows": whose plan it is. All ranks
  /// call it.
  Json describe(int64_t step);

 private:
  struct Planned {
    std::shared_ptr<const sequence::Plan> plan;
    uint64_t hash = 0;
    sequence::RankLayout layout;
    std::vector<DocumentPart> parts;  // its rows
  };
  /// A plan that nothing follows yet; the hash alone where the plan that stands is the same.
  struct Prepared {
    Planned planned;
    int64_t lacking_capacity = 0;             // that a plan would need; 0: there is one
    std::vector<program::StepKind> programs;  // none: those that stand serve
    double seconds = 0;
  };
  /// Plans these lengths and, unless `standing` has the same plan, composes `kinds`. Any thread.
  Prepared prepare(const std::vector<int64_t>& lengths, const std::vector<std::string>& kinds,
                   std::optional<uint64_t> standing) const;
  Prepared prepare_batch(int64_t batch, std::optional<uint64_t> standing) const;
  void plan_ahead(int64_t batch);
  /// What was planned ahead, if it was this batch.
  Prepared prepared_batch(int64_t batch);
  void take_up(Prepared prepared, std::optional<Planned>& planned, int64_t step);
  static std::optional<uint64_t> standing(const std::optional<Planned>& planned);
  void agree(const Prepared& prepared, int64_t step);
  /// `values` of every rank, one after the other.
  std::vector<int64_t> of_all(const std::vector<int64_t>& values, const char* question,
                              int64_t step);
  [[noreturn]] void refuse_capacity(int64_t nearest) const;
  void fill_windows(BatchBuffer& buffer) const;

  const Job& job_;
  int64_t rank_;
  comm::World& world_;
  DocumentLoader& documents_;
  runtime::Runner& runner_;
  std::vector<int64_t> row_ranks_;  // that share a row, ascending
  program::ProgramSet base_;        // this rank's class of every kind
  std::unique_ptr<const program::ProgramSet> current_;
  std::optional<Planned> training_, evaluation_;
  bool evaluates_ = false;
  int64_t batch_ = -1;
  BatchBuffer windows_;  // of the evaluation under way
  const sequence::RankLayout* layout_ = nullptr;
  const LengthsRead& lengths_read_;
  double planning_seconds_ = 0, waited_seconds_ = 0;  // of the batch that was begun last
  double attention_seconds_ = 0;
  std::vector<int> cores_;  // for the thread that plans ahead
  int64_t ahead_batch_ = -1;
  std::future<Prepared> ahead_;  // reads what is above, so it is waited for first
};

}  // namespace strait::train
