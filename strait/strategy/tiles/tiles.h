// The pass that takes apart, by rows, every product whose raw partial sum is then summed over mesh
// axis "x": the product of chunk i, then its all-reduce, so that this runs beside the product of
// chunk i + 1. FLUX (Chang et al. 2024) does so tile by tile inside one kernel; here the parts are
// operations, and no kernel waits for a flag.
//
// Per transformer block: output and down in the forward, the input gradients of up and qkv in the
// backward. With C chunks C times the sums, of 1/C of the rows each: bytes, floating-point
// operations and bits are those of the plain path, latencies C times. A product of g seconds with a
// sum of t takes about g + t / C, or t + g / C where the sum takes longer.
#pragma once

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Rewrites the micro-steps of a draft whose ranges of segments are joined (fuse). The chunks of a
/// sum are joined values, which the ops behind it read as one. With one rank along x, with one
/// chunk, or where a product cannot be taken apart (chunks.h) nothing changes. `shape` outlives the
/// draft.
void tiles(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
           const draft::StepOptions& options);

}  // namespace strait::strategy
