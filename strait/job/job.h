// Everything that is decided before the ranks start: one immutable description that all of them
// share.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "strait/checkpoint/reader.h"
#include "strait/cost/cost.h"
#include "strait/data/corpus.h"
#include "strait/data/loader.h"
#include "strait/data/token_batches.h"
#include "strait/job/resume_check.h"
#include "strait/job/run_folder.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/design.h"
#include "strait/tensor/device.h"
#include "strait/topology/binding.h"

namespace strait {

/// Design plus data, run folder and the checkpoint to go on from.
struct Job {
  strategy::Design design;
  std::unique_ptr<const Corpus> corpus;  // in place: loaders and windows refer to it
  std::unique_ptr<SequenceLoader> loader;
  std::unique_ptr<TokenBatches> documents;  // instead, with train.global_batch_tokens
  std::unique_ptr<ValidationWindows> validation;
  RunFolder folder;
  std::unique_ptr<checkpoint::CheckpointReader> resume;  // null = from the start
  std::vector<ResumeChange> changes;                     // against the run that saved `resume`
  bool finished = false;  // nothing to train: what stands in the run folder stays as it is
  std::string data_hash;
  std::string modules_hash;  // of a run of modules
  sim::Result simulated;     // of one steady step
  cost::Cost cost;
  /// Where the ranks of this process keep their values; null = plain memory and our own kernels.
  std::shared_ptr<tensor::Device> device;
  Binding binding;  // of the ranks of this computer
  /// Beside what training needs, of each; a save takes it.
  int64_t spare_memory_bytes = std::numeric_limits<int64_t>::max();
  double model_flops_per_token = 0;
  double peak_flops_per_second = 0;  // all ranks
};

/// Has rank 0 alone do something, and gives all ranks the text that it returns, or what it threw.
using OnLead = std::function<std::string(const std::function<std::string()>& action)>;

/// What a launcher left to the ranks; by default they are threads of this process.
struct Surroundings {
  int64_t cores_per_rank = 0;     // the same on all; 0 = an equal part of what this process may use
  int64_t cores_per_machine = 1;  // that its ranks may use together
  int64_t device_index = 0;       // which of several devices
  std::shared_ptr<tensor::Device> device = {};  // instead of opening the one that the run asks for
  std::map<int64_t, std::vector<int>> usable_cores =
      {};  // of each rank of this computer; none = threads
};

/// Reads the data, prepares the run folder (resolved run.toml, tokenizer) and opens the checkpoint.
/// Where ranks are processes every one calls it, and `on_lead` keeps them from each making a
/// folder. Opens the device that the run asks for, and decides which cores the ranks keep to.
Job make_job(
    const Run& run, int64_t ranks,
    const OnLead& on_lead = [](const auto& action) { return action(); },
    const Surroundings& surroundings = {});

}  // namespace strait
