// Model, layout and programs of a run: what needs no data. Made for train, simulate, verify and plan.
#pragma once

#include <cstdint>

#include "strait/config/run.h"
#include "strait/config/validate.h"
#include "strait/program/program.h"
#include "strait/shape/shape.h"
#include "strait/strategy/sharding/placement.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// A run, resolved for a number of ranks. Programs are verified.
struct Design {
  Run run;
  Resolved batch;
  Cluster cluster;
  ModelShape shape;
  Placement placement;
  Dtype dtype = Dtype::kFloat32;
  program::Program train;
  program::Program evaluation;
  program::Program publish;  // no operations: nothing to bring anywhere
  /// A step whose weights are those of the step before; no operations: `train` serves for that too.
  program::Program train_unchanged;
  program::Program evaluation_unchanged;  // likewise
};

/// Validates the run, composes its programs and verifies them. `vocabulary`: tokens of the data's
/// tokenizer; `cores`: what all ranks share, 0 = those that this process may use. Errors: UserError with file,
/// line, key.
Design make_design(const Run& run, int64_t ranks, int64_t vocabulary, int64_t cores = 0);

/// Vocabulary of a run whose data need not be there: what data.tokenizer says, else the data's if data.path
/// is set, else an assumed 256, noted in `assumed`.
int64_t design_vocabulary(const Run& run, bool& assumed);

}  // namespace strait::strategy
