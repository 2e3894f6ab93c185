// The cluster of a run, and the cluster file that `strait probe` writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "strait/config/run.h"
#include "strait/topology/cluster.h"

namespace strait {

/// The cluster of [cluster] for `ranks` ranks: a preset, the levels, or the file (read here).
/// UserError with file, line, key and the nearest valid choice.
Cluster resolve_cluster(const Run& run, int64_t ranks);

/// Reads a cluster file: version = 1, optional name, levels = [...] as in run.toml, and [rates]
/// with fp32_flops_per_second, fp64_flops_per_second, bf16_flops_per_second (products),
/// fp32_model_flops_per_second, bf16_model_flops_per_second (whole blocks of a model; missing: as
/// products), fp32_attention_flops_per_second, fp64_attention_flops_per_second,
/// bf16_attention_flops_per_second (attention alone, which whole blocks are then without; missing:
/// as whole blocks), fp32_weights_per_second, bf16_weights_per_second (numbers of weights that
/// products pass over, however few their rows; missing: at no cost), memory_bytes_per_second,
/// codec_bytes_per_second (missing: as memory), memory_bytes, cores_per_rank (all of one rank) and
/// shares_cores. Rates that are missing are those of the preset localhost. UserError with file,
/// line, key and the nearest key.
Cluster parse_cluster_file(std::string_view text, const std::string& file, int64_t ranks);

/// The text that parse_cluster_file reads back as the same cluster; the outermost level takes the
/// rest.
std::string print_cluster_file(const Cluster& cluster);

}  // namespace strait
