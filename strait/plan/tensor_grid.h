// AxoNN's communication model (Singh et al. 2024, section 5; 4D hybrid tensor and data
// parallelism): what a step of a GPT on a grid of four axes sends, and how long that takes where
// nothing is hidden and latency counts for nothing. It tells which grids are worth a closer look;
// the cost of a composed program (cost/cost.h) is exact.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strait/shape/options.h"
#include "strait/topology/cluster.h"

namespace strait::plan {

/// Sizes of mesh axes. In AxoNN's words x are the rows of the grid, y its columns, z its depth.
struct Grid {
  int64_t x = 1, y = 1, z = 1, data = 1;
  int64_t ranks() const { return x * y * z * data; }
  bool operator==(const Grid&) const = default;
};

/// How the script that the authors published counts the last product of the MLP: it exchanges that
/// layer's widths in and out, which changes the order of grids.
enum class DownProduct : uint8_t { kExact, kAsPublished };

/// Which axis of a grid has neighbouring ranks: x where meshes are laid (topology/mesh.h), y where
/// the authors lay them.
enum class Innermost : uint8_t { kX, kY };

struct GridStep {
  int64_t batch = 1;           // sequences of the step, over all ranks
  bool even = true;            // every data rank has the same number of them
  int64_t tokens = 1;          // of a sequence
  int64_t micro_batches = 1;   // for each of which z gathers and reduces
  bool recomputes = true;      // the forward twice, with its sums and gathers
  int64_t number_bytes = 2;    // of gathered weights and gradients of activations
  int64_t sum_bytes = 2;       // of sums in the forward, which may be wider
  int64_t gradient_bytes = 4;  // of gradients summed along data
  DownProduct down = DownProduct::kExact;
  Innermost innermost = Innermost::kX;
};

/// Bytes that a rank sends along each axis in a step, by rings; of the transformer blocks.
struct GridBytes {
  double x = 0, y = 0, z = 0, data = 0;
};
GridBytes grid_bytes(const ShapeOptions& shape, const Grid& grid, const GridStep& step);

/// Bytes per second of a rank in a ring of `size` ranks, `stride` ranks apart, while all such rings
/// are busy.
using RingRate = std::function<double(int64_t stride, int64_t size)>;

/// The rates that the authors measured on "perlmutter" or "frontier"; UserError names the nearest.
RingRate published_ring_rate(const std::string& machine);

/// Inside the innermost level its rate; beyond, that of the level that the ring spans times its
/// links, shared by the rings that leave a group of the level below: beta / min(group, stride).
RingRate ring_rate(const Cluster& cluster);

/// Seconds of all bytes one after another; behind the two inner axes come z and data.
double grid_seconds(const ShapeOptions& shape, const Grid& grid, const GridStep& step,
                    const RingRate& rate);

struct RankedGrid {
  Grid grid;
  double seconds = 0;
};
/// All grids of powers of two with `ranks` ranks, of which at least `least_sharers` share a block
/// (x y z), and whose data ranks divide an even batch; the fastest first, ties by x, y, z. Cost:
/// O(log^3 ranks).
std::vector<RankedGrid> rank_grids(const ShapeOptions& shape, int64_t ranks, int64_t least_sharers,
                                   const GridStep& step, const RingRate& rate);

}  // namespace strait::plan
