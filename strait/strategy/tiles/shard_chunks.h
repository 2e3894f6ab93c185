// Into how many chunks a shard is best cut where a product stands beside the gather of its input's
// rows, or beside the scatter of its result's: FLUX (Chang et al. 2024), its tile of communication.
#pragma once

#include <cstdint>

#include "strait/draft/step_options.h"
#include "strait/strategy/tiles/chunks.h"

namespace strait::strategy {

/// A product on one of the ranks whose shards are the rows of what it takes or makes.
struct ShardedProduct {
  bool gathers = false;    // what it takes comes from the others; else what it makes goes to them
  int64_t shard_rows = 0;  // equal on all ranks
  int64_t row_bytes = 0;   // of what is exchanged
  double product_seconds = 0;  // of all rows
  double call_seconds = 0;     // of each further call
  double beside_seconds = 0;   // of what is computed between the exchange and who needs it
  double sum_seconds = 0;      // of adding up what has come
};

/// The exchange and the product, whole, one after the other.
double seconds_whole(const ShardedProduct& product, const SumPath& path);
/// The same in chunks of so many rows: two resources, products one after another and shifts one
/// after another. A gather begins with the rank's own shard; a scatter ends with it. O(chunks).
double seconds_by_shards(const ShardedProduct& product, int64_t chunk, const SumPath& path);

/// Rows of a chunk; 0: the product stays whole. Whole, too, on a group that a level parts: sums
/// inside its parts would move fewer bytes between them. Otherwise as choose_chunk, but that one
/// chunk, the whole shard, is a choice.
int64_t choose_shard_chunk(const ShardedProduct& product, const draft::Tiles& tiles,
                           const SumPath& path);

/// Whether some but not all members lie in one group of a level.
bool is_parted(const collective::Spread& spread);

}  // namespace strait::strategy
