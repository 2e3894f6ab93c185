// What a plan does, for people and for checks: documents per zone, loads of ranks, exact bytes; and
// which ranks have made another plan.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/sequence/price.h"

namespace strait::sequence {

/// Bytes of the attention of one layer by level, forward and backward, exact for uneven counts.
/// Heads: their all-to-alls, counted between nodes in proportion to the ranks there.
LevelTraffic plan_traffic(const Plan& plan, const Layer& layer);
/// Bytes that each rank sends to other nodes, over the link that is its own where a node has one
/// for each: forward and backward of one layer together. Heads: every rank as much.
std::vector<int64_t> bytes_over_links(const Plan& plan, const Layer& layer);
/// Those of the ranks of each node together.
std::vector<int64_t> bytes_between_nodes(const Plan& plan, const Layer& layer);

/// Of `layers` equal layers: {"lengths": [..] of all documents, "documents": {"local": .., "intra":
/// .., "inter": ..}, "tokens":
/// {"least": .., "most": ..} of ranks, "pairs": likewise, "ranks": {"local": {"tokens": [..] of all
/// ranks, "pairs": [..]}, "intra": .., "inter": ..}, "bytes_inside_nodes",
/// "bytes_between_nodes": {"forward": .., "backward": ..}, "bytes_leaving_nodes": [..],
/// "bytes_leaving_ranks": [..], "predicted": {"slowest_seconds": .., "mean_seconds": ..,
/// "computing_slowest_seconds": .., "computing_mean_seconds": .., "layers_seconds": of the rank
/// that has most of everything, with moves}, "routing": {"proxies": .., "pieces": .., "rotations":
/// ..}, "heads": {"ranks": neighbours that exchange them, or 1, "documents": whose they are},
/// "linear": {"remapped":
/// .., "remap": "none" or "qkv" or "residual", "moved_tokens": ..,
/// "slowest_over_mean_of_attention":
/// .. of ranks' tokens,
/// "slowest_over_mean": .. of those that linear modules have, "bytes_inside_nodes",
/// "bytes_between_nodes", "predicted_seconds", "predicted_remap_seconds"}, "hash": ".."}. Bytes
/// leaving nodes are those of both.
Json plan_json(const Plan& plan, const Layer& layer, const Price& price, int64_t layers);
/// The same as a line; with "measured", whose members are the two of computing, that too.
std::string plan_text(const Json& plan);

/// "" when all ranks have the same hash, else the ranks that differ from the most frequent one
/// (ties: the smaller rank's): "rank 3 has planned another batch: ...". Called before the first
/// transfer.
std::string find_disagreement(std::span<const uint64_t> hash_of_rank);

}  // namespace strait::sequence
