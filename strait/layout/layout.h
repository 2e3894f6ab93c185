// Which rank holds which elements of which unit. Builders, initial values, hashes, conversion and
// checkpoints read it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "strait/program/program.h"
#include "strait/shape/boxes.h"
#include "strait/shape/element_runs.h"
#include "strait/shape/shape.h"
#include "strait/topology/mesh.h"

namespace strait {

/// Borders of shards are multiples of this many elements, so that vector kernels start aligned.
inline constexpr int64_t kShardAlignment = 16;

/// Split of a unit of `elements` elements over a span of `span` ranks of a world of `world` data
/// ranks (span divides world). The finest split (span == world) has grain ceil(elements / world)
/// rounded up to kShardAlignment; a coarser one joins world / span neighbours, so shards of all
/// spans nest. The last parts may be shorter or empty; nothing is padded.
program::Partition split_unit(int64_t elements, int64_t span, int64_t world);

/// Range [begin, end) of elements.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Which range of a unit one rank holds under a span: part rank % span of split_unit. Spans are
/// groups of neighbouring ranks.
Range shard_of(int64_t elements, int64_t span, int64_t world, int64_t rank);

/// Range of a unit that `rank` updates: part(rank) of op.partition in op.group. `op` is an update
/// or a squared norm.
Range updated_range(const program::Program& program, const program::Op& op, int64_t rank);

/// How many members each hop has that cuts what a group's parts are of, innermost first.
std::vector<int64_t> hops_of(const program::Group& group);

/// A range of a local unit and the elements of the logical unit behind it.
struct LocalPiece {
  Range local;
  ElementRuns runs;
};

/// Where elements of the model lie on the ranks of a mesh. A rank holds, of every parameter, a box
/// of its dims (axes x and y), packed into the **local unit**; of that a flat range (axes z,
/// sequence and data, whose ranks are the positions that spans and hops count). The **logical
/// unit** is the whole unit as one rank would hold it, which checkpoints, hashes and conversion
/// name. An immutable value.
class Layout {
 public:
  /// Splits are those of the parameters in `shape`; an axis of size 1 splits nothing.
  /// `first_stage[unit]`: the first stage that holds the unit; empty: 0. Errors: UserError with the
  /// key of the axis where a part cannot be cut evenly; InternalError for splits that make no
  /// sense.
  Layout(const ModelShape& shape, const Mesh& mesh, std::vector<int64_t> first_stage = {});

  /// The model with its units as a rank holds them: parameters with local dims, packed in the order
  /// of sections (decayed first, then split before shared, else as given). Equal to `shape` without
  /// splits.
  const ModelShape& local_shape() const { return local_; }
  int64_t local_elements(int64_t unit) const { return local_.units.at(unit).elements; }

  /// Ranks of one replica that hold the same boxes as one another, and which of them a rank is.
  int64_t positions() const;
  int64_t position(int64_t rank) const;
  /// Replicas have training states of their own; without local steps there is one.
  int64_t replicas() const { return replica_.size; }
  int64_t replica(int64_t rank) const { return replica_.coordinate(rank); }

  /// Which of those that see different sequences. Ranks of sequence, x and y see the same ones.
  int64_t batch_position(int64_t rank) const;

  /// Where a rank stands among those that share the tokens of every sequence.
  AxisPlace sequence_place(int64_t rank) const { return sequence_.place(rank); }

  /// Where a rank stands among those that share the boxes' dims.
  AxisPlace x_place(int64_t rank) const { return x_.place(rank); }
  AxisPlace y_place(int64_t rank) const { return y_.place(rank); }

  /// Which range of the local unit a rank holds when hops of these sizes, innermost first, have cut
  /// it one after another: every range of fewer hops holds those of more (program::Group::nest).
  /// The sizes multiply to a divisor of positions().
  Range held(int64_t unit, int64_t rank, const std::vector<int64_t>& hops) const;

  /// The part of `held` that this position alone writes: held again split over those that hold the
  /// same.
  Range written(int64_t unit, int64_t rank, const std::vector<int64_t>& hops) const;

  /// The ranges of `written` that this rank alone counts where ranks add up something over the
  /// elements of the model, such as the gradient norm: the first rank of x and y counts what all of
  /// them hold, the first stage a unit that several stages hold. Those of all ranks tile the
  /// logical unit. In order, not empty, neighbours joined.
  std::vector<Range> counted(int64_t unit, int64_t rank, const std::vector<int64_t>& hops) const;
  /// Calls visit(range) for each of them. Allocates nothing.
  template <class Visit>
  void for_each_counted(int64_t unit, int64_t rank, const std::vector<int64_t>& hops,
                        const Visit& visit) const;

  /// Elements of the logical unit behind a range of the local one. Cost: O(parameters + runs).
  ElementRuns pieces(int64_t unit, int64_t rank, Range local) const;

  /// The parts of `local` that this rank writes, in order: of what several ranks of x or y, or
  /// several stages, hold, the first of them. Neighbours are joined.
  std::vector<LocalPiece> written_pieces(int64_t unit, int64_t rank, Range local) const;
  /// The same of what each stage that holds the unit has of its own: what its encodes have lost.
  std::vector<LocalPiece> sent_pieces(int64_t unit, int64_t rank, Range local) const;
  /// Who loses something when a rank encodes gradients of a unit: its position, and behind those of
  /// the first stage that holds the unit the positions of another one.
  int64_t sender(int64_t unit, int64_t rank) const;

 private:
  struct Axis {
    int64_t size = 1, stride = 1;
    int64_t coordinate(int64_t rank) const { return rank / stride % size; }
    AxisPlace place(int64_t rank) const { return {size, coordinate(rank)}; }
  };
  static Axis axis_of(const Mesh& mesh, const char* name);
  /// Whether the rank is the one that counts and writes what is split like this.
  bool is_first(bool split_x, bool split_y, int64_t rank) const;
  bool is_first_stage(int64_t unit, int64_t rank) const;
  /// visit(logical parameter, what of the local unit it has of `local`, the elements behind that).
  template <class Visit>
  void for_each_parameter(int64_t unit, int64_t rank, Range local, const Visit& visit) const;

  Axis x_, y_, z_, sequence_, data_, replica_, stage_;
  ModelShape local_;
  std::vector<std::vector<ParameterShape>> logical_;  // [unit] LocalUnit::logical
  std::vector<int64_t> first_stage_;
};

template <class Visit>
void Layout::for_each_counted(int64_t unit, int64_t rank, const std::vector<int64_t>& hops,
                              const Visit& visit) const {
  const UnitShape& shape = local_.units.at(static_cast<size_t>(unit));
  if (!is_first_stage(unit, rank)) return;
  Range own = written(unit, rank, hops);
  // What one section after another leaves of `own`: it ends where a section is not counted.
  const auto give = [&](int64_t end) {
    const Range counted{own.begin, std::min(own.end, end)};
    if (counted.size() > 0) visit(counted);
  };
  for (const Section& section : shape.sections) {
    if (is_first(section.split_x, section.split_y, rank)) continue;
    give(section.begin);
    own.begin = std::max(own.begin, section.end);
  }
  give(shape.elements);
}

}  // namespace strait
