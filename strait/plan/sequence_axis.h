// Ways to share sequences among ranks, for a search: how many ranks, and by which engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/config/run.h"
#include "strait/plan/trials.h"

namespace strait::plan {

/// "sequence 4, ring", "sequence 4, heads_ring 2", "sequence 4, zeppelin 2".
std::string sharing_text(const Run& run);

/// The run with mesh.axes.sequence = `sharers`, by sequence.engine or, where that is not written,
/// by each of ring, gathered and heads, by heads_ring in groups of every size that divides the
/// ranks and the key heads, and by zeppelin where batches are of documents, also with heads
/// exchanged. `ranks`: of the run. Where all engines are refused for the same reason, the refusal
/// is one.
Trials share_sequences(const Run& run, int64_t sharers, int64_t ranks, const Require& require);

}  // namespace strait::plan
