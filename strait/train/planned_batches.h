// Batches whose documents a plan spreads over the ranks of the axis sequence: plans, the programs
// composed for them, and what a rank has of each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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
/// last one's is composed when its batch is due, and replaces it in the runner.
class PlannedBatches {
 public:
  /// All outlive it. The job's design has a planner. `lengths_read`: for tests, what a rank has
  /// read of a batch before it plans; may be empty.
  using LengthsRead = std::function<void(int64_t rank, std::vector<int64_t>& lengths)>;
  PlannedBatches(const Job& job, int64_t rank, comm::World& world, DocumentLoader& documents,
                 runtime::Runner& runner, const LengthsRead& lengths_read);

  /// What the rank has of the batch under way.
  const sequence::RankLayout* const* layout() const { return &layout_; }

  /// The steps to come train on a batch, or evaluate windows from `first` on. Compares plans with
  /// the other ranks of the row first: InternalError on all of them that names the rank with
  /// another one. No transfer is under way.
  void begin_batch(int64_t batch, int64_t step);
  void begin_windows(const ValidationPlan& validation, int64_t first, int64_t step);

  /// This rank's rows of what was begun last.
  void fill(BatchBuffer& buffer);

  /// Where executors count the seconds of attention of a step.
  double* attention_seconds() { return &attention_seconds_; }
  /// sequence::plan_json of the batch trained on last, with what its attention took to compute on
  /// the ranks of the row: {"measured": {"computing_slowest_seconds", "computing_mean_seconds"}};
  /// and "planning_seconds", in which this rank has planned, composed and compared. All ranks call
  /// it.
  Json describe(int64_t step);

 private:
  struct Planned {
    std::shared_ptr<const sequence::Plan> plan;
    uint64_t hash = 0;
    sequence::RankLayout layout;
    std::vector<DocumentPart> parts;  // its rows
  };
  /// Plans these lengths, unless they are those of `planned` already; composes `kinds` for them.
  void take_up(const std::vector<int64_t>& lengths, const std::vector<std::string>& kinds,
               Planned& planned, int64_t step);
  void agree(uint64_t hash, int64_t step);
  /// `value` of every rank of the row.
  std::vector<int64_t> of_row(int64_t value, const char* question, int64_t step);
  void fill_windows(BatchBuffer& buffer) const;

  const Job& job_;
  int64_t rank_;
  comm::World& world_;
  DocumentLoader& documents_;
  runtime::Runner& runner_;
  std::vector<int64_t> row_ranks_;  // that share a row, ascending
  program::ProgramSet base_;        // this rank's class of every kind
  std::unique_ptr<const program::ProgramSet> current_;
  Planned training_, evaluation_;
  bool evaluates_ = false;
  int64_t batch_ = -1;
  BatchBuffer windows_;  // of the evaluation under way
  const sequence::RankLayout* layout_ = nullptr;
  const LengthsRead& lengths_read_;
  double planning_seconds_ = 0;  // of the batch that was begun last
  double attention_seconds_ = 0;
};

}  // namespace strait::train
