// Runs a job on ranks.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "strait/job/job.h"
#include "strait/train/outcome.h"
#include "strait/train/trainer.h"

namespace strait::train {

/// On thread ranks: trains to the end or until `signal` is not 0. `outcome` holds what is known
/// also when this throws: what a rank failed with. Writes metrics.jsonl, checkpoints and, when
/// asked, timeline.json into the run folder. Every failure leaves the flight records of the ranks
/// in the run folder; `strait report` reads them.
void train(const Job& job, const Observer& observer, const std::atomic<int>& signal,
           Outcome& outcome, const Hooks& hooks = {});

/// What surrounds one rank that is a process of its own.
struct ProcessRank {
  comm::World& world;
  memory::PageSource* window = nullptr;  // what other ranks can reach
  std::string save_token;                // checkpoint/session.h; the same on all ranks
  /// The texts of all ranks on rank 0, by rank. Collective.
  std::function<std::vector<std::string>(const std::string&)> gather;
  Hooks hooks{};
};

/// The same for one rank whose others are other processes; all call it. Rank 0 writes the run
/// folder and, when it ends well, gets the outcome of all ranks; the others' outcomes hold their
/// own part.
void train_rank(const Job& job, const Observer& observer, const std::atomic<int>& signal,
                Outcome& outcome, const ProcessRank& rank);

}  // namespace strait::train
