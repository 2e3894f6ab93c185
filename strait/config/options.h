// The sections of the run file that belong to no lower folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "strait/kernel/product_choice.h"

namespace strait {

struct RuntimeOptions {
  std::string backend = "auto";  // auto | threads
  std::string device = "auto";   // auto | cpu
  int64_t threads_per_rank = 0;  // 0 = cores / ranks, at least 1
  std::string bind = "auto";     // none | auto | core
  double deadline_seconds = 120;
  bool deterministic = false;
  std::string products = "auto";  // kernel::product_names()
  /// No key: filled in by the program that measures. Empty: nobody has chosen.
  kernel::ProductChoice chosen;
};

struct TensorOptions {
  std::vector<std::string> overlap = {"oar", "ors", "oag"};
  bool sequence_parallel = false;
  std::string tiles = "auto";  // off | auto | on | on:N
  int64_t cached_gathers = 0;
  bool overlaps(std::string_view what) const {
    return std::ranges::find(overlap, what) != overlap.end();
  }
};

struct SequenceOptions {
  bool plan = false;
  std::string engine = "auto";
  std::string head_ranks = "0";  // auto | N
  std::string routing = "auto";
  std::string remap = "auto";
  bool fill = true;
  int64_t capacity_tokens = 0;
};

struct PipelineOptions {
  std::string order = "1f1b";
  int64_t chunks_per_stage = 1;
  std::string cuts = "auto";
  std::string activation_codec = "none";
  bool post_validation = false;
};

struct CompressionOptions {
  std::string codec = "none";
  int64_t skip_below_elements = 1024;
  std::string adapt = "none";
  int64_t adapt_every_steps = 1000;
};

struct LgrecoOptions {
  double alpha = 1.0;
  int64_t start_step = 1000;
  int64_t gather_steps = 10;
};

struct SimulateOptions {
  int64_t steps = 1;
  std::string jitter = "none";  // none | normal:S | lognormal:S
  std::vector<double> stragglers;
  double failures_per_device_hour = 0.0;
};

struct PlanOptions {
  int64_t keep = 10;
  double memory_share = 0.95;
  std::vector<std::string> search = {"mesh", "placement", "codecs",           "pipeline",
                                     "sync", "sequence",  "micro_batch_size", "recompute"};
  double utilization = 0;  // share of time that ranks are to compute; 0 = policies do not vary
};

struct TuneOptions {
  double budget_seconds = 600;
  int64_t trial_steps = 5;
  int64_t candidates = 20;
};

struct TrainOptions {
  int64_t steps = 2000;
  int64_t global_batch_size = 12;   // sequences per optimizer step over all ranks
  int64_t global_batch_tokens = 0;  // > 0: of whole documents, instead
  int64_t micro_batch_size = 0;     // 0 = global / data ranks
  std::string precision = "fp32";   // fp32 | fp64
  double clip_norm = 1.0;           // 0 = off
  std::string non_finite = "stop";  // stop | skip
  std::string recompute = "none";   // none | block | every:K
  std::string start_from;           // reserved
};

struct EvaluationOptions {
  int64_t every_steps = 250;  // 0 = only after the last step
  int64_t batches = 0;        // 0 = the whole validation part once
};

struct CheckpointOptions {
  int64_t every_steps = 0;
  bool asynchronous = true;
  int64_t keep = 0;              // newest checkpoints kept; 0 = all
  bool keep_best = false;        // and that of least validation loss
  std::string resume = "never";  // never | auto | PATH
};

struct OutputOptions {
  std::string run_dir;  // "" = a new runs/<name>-NNN
  int64_t log_every_steps = 10;
  int64_t timeline_steps = 0;
  int64_t overlap_steps = 0;
};

struct PlacementSpans {
  std::string weights = "world", secondary = "none", gradients = "world", optimizer = "world";
};

struct PlacementCodecs {
  std::string weights = "none", secondary = "none";
  std::vector<std::string> gradients = {"none"};
  std::string update = "none";
};

/// The preset fills what the run file does not write (config/run.h: Run::is_set).
struct PlacementOptions {
  std::string preset = "zero3";
  PlacementSpans spans;
  PlacementCodecs codecs;
  std::string reduce_every = "micro-step";
  int64_t prefetch_units = 1;
};

struct SyncRounds {
  int64_t period_steps = 30, delay_steps = 0, fragments = 1;
  std::string fragment_order = "strided";
  double mixing = 0.5;
  bool eager = false;
};

struct SyncOuter {
  std::string kind = "nesterov";
  double learning_rate = 0.4, momentum = 0.9, clip = 0.0;
  std::string penalty = "constant:1.0", codec = "none", on_lost_replica = "stop";
};

struct SyncOptions {
  std::string policy = "every-step";
  std::string replica = "none";
  SyncRounds rounds;
  SyncOuter outer;
};

}  // namespace strait
