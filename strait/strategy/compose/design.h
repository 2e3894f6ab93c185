// Model, layout and programs of a run: what needs no data. Made for train, simulate, verify and
// plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "strait/config/run.h"
#include "strait/config/validate.h"
#include "strait/data/corpus.h"
#include "strait/draft/step_options.h"
#include "strait/layout/layout.h"
#include "strait/program/program_set.h"
#include "strait/shape/shape.h"
#include "strait/strategy/adapt/policy.h"
#include "strait/strategy/compose/batch_plan.h"
#include "strait/strategy/compose/round.h"
#include "strait/strategy/sharding/placement.h"
#include "strait/strategy/sync/policy.h"
#include "strait/topology/cluster.h"
#include "strait/topology/mesh.h"

namespace strait::strategy {

/// Kinds of programs, and what they are for. "start": what must run before the first step.
inline constexpr const char* kSteady = "steady";
inline constexpr const char* kUnchanged = "unchanged";  // weights are those of the step before
inline constexpr const char* kEvaluation = "evaluation";
inline constexpr const char* kEvaluationUnchanged = "evaluation-unchanged";
inline constexpr const char* kPublish = "publish";
inline constexpr const char* kValidation = "validation";  // of a step that none follows
inline constexpr const char* kForStart = program::ProgramSet::kStart;
inline constexpr const char* kForStep = "step";
inline constexpr const char* kForEvaluation = "evaluation";
inline constexpr const char* kForEnd = program::ProgramSet::kEnd;
inline constexpr const char* kForSettling = "settling";  // the last step becomes valid
inline constexpr const char* kForShow = "show";  // the weights to evaluate come, and go again

/// A run, resolved for a number of ranks. Programs are verified.
struct Design {
  Run run;
  Resolved batch;
  Cluster cluster;
  ModelShape shape;  // whole, as checkpoints name it
  Mesh mesh = Mesh({}, 1);
  /// Which rank holds what. Programs are composed for layout.local_shape().
  Layout layout = Layout(ModelShape(), mesh);
  draft::PipelineForm pipeline;  // order and cuts of the stages
  Placement placement;
  Policy policy;
  AdaptPolicy adapt;
  /// Where batches are planned (sequence.engine); then `programs` are those of one batch, which
  /// stands for all, and compose_for_plan has those of any other.
  std::shared_ptr<const BatchPlanner> planner;
  Dtype dtype = Dtype::kFloat32;
  /// Of the model, forward and backward, per token of the batch that `programs` are composed for;
  /// where it is not planned, of any. Attention counts inside of documents alone.
  double model_flops_per_token = 0;
  program::ProgramSet programs;
  /// Of the planned batches that were looked at the one in which a rank has most tokens, an
  /// ordinary step; empty where there were none. For what memory is needed.
  std::vector<program::Program> widest;
  Round round;  // what a step is on the average
  /// The programs of an ordinary step, by rank class.
  const std::vector<program::Program>& steady() const { return programs.classes(kSteady); }
};

/// Validates the run, composes its programs and verifies them. `vocabulary`: tokens of the data's
/// tokenizer; `cores`: what all ranks share, 0 = those that this process may use. `corpus` tells
/// how long documents are, in batches or windows, and where batches are planned the one that stands
/// for all is from it (expected_batch.h); without it, documents are as long as the context.
/// Errors: UserError with file, line, key.
Design make_design(const Run& run, int64_t ranks, int64_t vocabulary, int64_t cores = 0,
                   const Corpus* corpus = nullptr);

/// The design's programs, verified, with another compressed all-reduce: the same runs of elements
/// in other codecs.
program::ProgramSet compose_with_layers(const Design& design, std::vector<codec::Runs> layers);

/// What one rank runs of a batch with a plan: the program of a kind (kSteady, kUnchanged,
/// kEvaluation, kEvaluationUnchanged), with the resident values of the design's. Not verified: its
/// messages stand in the programs of all ranks. Cost: about one class of make_design.
program::Program compose_for_plan(const Design& design, const std::string& kind, int64_t rank,
                                  std::shared_ptr<const sequence::Plan> plan);

/// Vocabulary of a run whose data need not be there: what data.tokenizer says, else the data's if
/// data.path is set, else an assumed model.shape.vocabulary or 256, noted in `assumed`.
int64_t design_vocabulary(const Run& run, bool& assumed);

/// The data of a run whose batches or windows keep documents apart, if data.path is set: how long
/// documents are decides what attention costs.
std::optional<Corpus> design_corpus(const Run& run);

}  // namespace strait::strategy
