// Ways to share sequences among ranks, for a search: how many ranks, and by which engine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strait/config/run.h"
#include "strait/plan/search.h"

namespace strait::plan {

/// "sequence 4, ring", "sequence 4, heads_ring 2".
std::string sharing_text(const Run& run);

/// Runs that share their sequences, and what was refused.
struct SharedSequences {
  std::vector<Run> runs;
  std::vector<Rejection> refused;  // one where all engines are, for the same reason
};

/// The run with mesh.axes.sequence = `sharers`, by sequence.engine or, where that is not written,
/// by each of ring, gathered and heads, by heads_ring in groups of every size that divides the
/// ranks and the key heads, and by zeppelin where batches are of documents. `require` throws
/// UserError for a run that cannot be.
SharedSequences share_sequences(const Run& run, int64_t sharers,
                                const std::function<void(const Run&)>& require);

}  // namespace strait::plan
