// What decides a step beside model, placement and cluster.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/sequence/plan.h"

namespace strait::draft {

/// Which blocks keep only their input and run their forward again in the backward: every `every`-th
/// transformer block (1 = all, 0 = none).
struct Recompute {
  int64_t every = 0;
  bool applies(int64_t layer) const { return every > 0 && layer % every == every - 1; }
};
/// "none" | "block" | "every:K"; UserError otherwise.
Recompute parse_recompute(const std::string& text);

/// What checkpoints call the weights that are evaluated and exported, and, between borders of
/// rounds, the weights of one replica.
inline constexpr const char* kMasterState = "master";
inline constexpr const char* kLocalState = "local";

/// A state that an optimizer keeps per parameter beside the weights: its letter in programs, and
/// what checkpoints call it.
struct Moment {
  std::string letter;  // "m", "v"
  std::string state;   // "first_moment", "momentum"
};
/// Two for AdamW, one for SGD with momentum.
using OptimizerState = std::vector<Moment>;

/// Into how many products and sums over x the tensor grid takes each product apart whose result is
/// summed over x.
struct Tiles {
  enum class Choice : uint8_t {
    kOff,   // one
    kAuto,  // as many as are predicted to be fastest: one where none is faster
    kOn     // `chunks`; 0: at least two, as many as are predicted to be fastest
  };
  Choice choice = Choice::kOff;
  int64_t chunks = 0;
};
/// "off" | "auto" | "on" | "on:N"; UserError otherwise.
Tiles parse_tiles(const std::string& text);

/// What a program is for.
enum class Purpose : uint8_t { kTrain, kEvaluate, kGenerate, kPublish, kBorder };

/// When the ranks of a step agree on whether and how to update.
enum class Validation : uint8_t {
  kInStep,  // before the update
  kBehind,  // in the next step, which may take the update back
  kAlone,   // that part of the next step, without one
};

/// Who computes what when along mesh axis "stage".
struct PipelineForm {
  std::string order = "1f1b";  // gpipe 1f1b interleaved zero-bubble-h1 zero-bubble-h2
  int64_t chunks = 1;          // runs of blocks that a stage has; chunk c of stage s of S: c S + s
  std::vector<int64_t> cuts = {};  // first block of every run but the first; empty: equal parts
  std::string codec = "none";      // of what passes between stages
};

struct StepOptions {
  Purpose purpose = Purpose::kTrain;
  int64_t micro_batch_size = 1;  // sequences per rank and micro-step
  int64_t tokens = 1;            // tokens that a rank has of each sequence
  int64_t attention_tokens = 0;  // that its attention has: BlockExtent::attention_rows
  int64_t accumulation = 1;      // micro-steps per optimizer step
  int64_t cache_tokens = 0;      // generation: that the key/value cache holds
  Dtype dtype = Dtype::kFloat32;
  Recompute recompute;
  OptimizerState optimizer;
  bool documents = false;        // batches carry document starts
  int64_t row_start_tokens = 0;  // and those of so many tokens of whole sequences, for heads
  /// Which ranks of the axis sequence have which documents of the batch; null: they share all.
  std::shared_ptr<const sequence::Plan> plan = nullptr;
  /// BlockExtent::attends_apart.
  bool attends_apart() const {
    return plan != nullptr && plan->remapping == sequence::Remapping::kResidual;
  }
  bool weights_unchanged = false;  // since the last program: secondary copies still hold
  bool in_backward = false;        // units are updated as soon as their gradients are final
  bool local_steps = false;        // replicas have weights of their own between borders of rounds
  bool hides_sums = true;          // sums of the tensor grid stand beside products of weights
  Tiles tiles;                     // of products whose results are summed over x
  PipelineForm pipeline;
  Validation validation = Validation::kInStep;
};

}  // namespace strait::draft
