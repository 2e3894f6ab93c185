// The axes of the mesh, and [pipeline] along one of them, against ranks, model, batch and cluster.
// Each function throws UserError with file, line, key and the nearest valid size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/codec/codec.h"
#include "strait/config/run.h"
#include "strait/topology/cluster.h"

namespace strait {

/// Every axis but data divides what the axes before it leave of the ranks; data is the rest, or 0.
void check_mesh_sizes(const Run& run, int64_t ranks);

/// Axes x and y divide what they split of the model. `ranks`: of the run.
void check_mesh_model(const Run& run, int64_t ranks);

/// No axis ends within a group of a level. `cluster` is that of the run; sizes have been checked.
void check_mesh_levels(const Run& run, const Cluster& cluster);

/// Refuses orders, chunks and cuts that cannot take effect: without stages, without the blocks for
/// them, or beside other keys.
void check_pipeline(const Run& run);

/// Refuses numbers of micro-batches that the order cannot use. `share`: sequences of a
/// data-parallel rank; `accumulation`: micro-batches that they make.
void check_micro_batches(const Run& run, int64_t share, int64_t accumulation);

/// Refuses tensor.sequence_parallel where ranks of x cannot have equally many `rows` of a
/// micro-batch of `micro_batch` sequences each. `share`: as above.
void check_row_split(const Run& run, int64_t rows, int64_t micro_batch, int64_t share);

/// Whether a codec is fp16 and nothing scales values into its range.
bool beyond_range(const Run& run, const codec::CodecSpec& codec);

/// The first transformer block, counted from 0, of every run of blocks but the first; empty for
/// "auto". UserError (pipeline.cuts) for a text that is neither.
std::vector<int64_t> parse_cuts(const std::string& text);

}  // namespace strait
