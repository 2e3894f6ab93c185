#include "strait/layout/layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "strait/base/errors.h"
#include "strait/shape/split.h"

namespace strait {
namespace {

int64_t span_of(const std::vector<int64_t>& hops) {
  return std::accumulate(hops.begin(), hops.end(), int64_t{1}, std::multiplies<>());
}

/// `held`, a part of `partition`, split again over the `replicas` ranks that hold it.
Range share_of_replica(const program::Partition& partition, Range held, int64_t replicas,
                       int64_t replica) {
  const int64_t full = partition.grain == partition.elements
                           ? split_unit(partition.elements, replicas, replicas).grain
                           : partition.grain / replicas;
  const int64_t begin = held.begin + replica * full;
  return {std::min(begin, held.end), std::min(begin + full, held.end)};
}

}  // namespace

program::Partition split_unit(int64_t elements, int64_t span, int64_t world) {
  ensure(span >= 1 && world >= span && world % span == 0,
         "split_unit: the span must divide the world");
  if (span == 1) return {elements, elements};
  const int64_t exact = (elements + world - 1) / world;
  const int64_t grain = (exact + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
  return {elements, grain * (world / span)};
}

Range shard_of(int64_t elements, int64_t span, int64_t world, int64_t rank) {
  const program::Partition partition = split_unit(elements, span, world);
  const int64_t part = rank % span;
  return {partition.begin(part), partition.end(part)};
}

Range updated_range(const program::Program& program, const program::Op& op, int64_t rank) {
  const int64_t part = program.groups[op.group].part(rank);
  return {op.partition.begin(part), op.partition.end(part)};
}

std::vector<int64_t> hops_of(const program::Group& group) {
  return group.nest.empty() ? std::vector<int64_t>{group.size} : group.nest;
}

Layout::Axis Layout::axis_of(const Mesh& mesh, const char* name) {
  return {mesh.axis(name).size, mesh.axis(name).stride};
}

Layout::Layout(const ModelShape& shape, const Mesh& mesh, std::vector<int64_t> first_stage)
    : x_(axis_of(mesh, "x")),
      y_(axis_of(mesh, "y")),
      z_(axis_of(mesh, "z")),
      sequence_(axis_of(mesh, "sequence")),
      data_(axis_of(mesh, "data")),
      replica_(axis_of(mesh, "replica")),
      stage_(axis_of(mesh, "stage")),
      local_(strait::local_shape(shape, x_.size, y_.size, sequence_.size)),
      first_stage_(std::move(first_stage)) {
  first_stage_.resize(shape.units.size(), 0);
  for (const UnitShape& unit : shape.units)
    logical_.push_back(localize(unit, x_.size, y_.size).logical);
}

int64_t Layout::positions() const { return z_.size * sequence_.size * data_.size; }

int64_t Layout::position(int64_t rank) const {
  const int64_t outer = data_.coordinate(rank) * sequence_.size + sequence_.coordinate(rank);
  return outer * z_.size + z_.coordinate(rank);
}

int64_t Layout::batch_position(int64_t rank) const {
  const int64_t row = replica_.coordinate(rank) * data_.size + data_.coordinate(rank);
  return row * z_.size + z_.coordinate(rank);
}

Range Layout::held(int64_t unit, int64_t rank, const std::vector<int64_t>& hops) const {
  const int64_t span = span_of(hops);
  const program::Partition partition = split_unit(local_elements(unit), span, positions());
  const int64_t part = program::part_of(hops, position(rank));
  return {partition.begin(part), partition.end(part)};
}

Range Layout::written(int64_t unit, int64_t rank, const std::vector<int64_t>& hops) const {
  const int64_t span = span_of(hops), replicas = positions() / span;
  return share_of_replica(split_unit(local_elements(unit), span, positions()),
                          held(unit, rank, hops), replicas, position(rank) / span);
}

bool Layout::is_first(bool split_x, bool split_y, int64_t rank) const {
  return (split_x || x_.coordinate(rank) == 0) && (split_y || y_.coordinate(rank) == 0);
}

bool Layout::is_first_stage(int64_t unit, int64_t rank) const {
  return stage_.coordinate(rank) == first_stage_.at(static_cast<size_t>(unit));
}

std::vector<Range> Layout::counted(int64_t unit, int64_t rank,
                                   const std::vector<int64_t>& hops) const {
  std::vector<Range> ranges;
  for_each_counted(unit, rank, hops, [&](const Range& range) { ranges.push_back(range); });
  return ranges;
}

template <class Visit>
void Layout::for_each_parameter(int64_t unit, int64_t rank, Range local, const Visit& visit) const {
  const UnitShape& shape = local_.units.at(static_cast<size_t>(unit));
  ensure(0 <= local.begin && local.begin <= local.end && local.end <= shape.elements,
         "layout: a range outside of the local unit");
  for (size_t at = 0; at < shape.parameters.size(); ++at) {
    const int64_t offset = shape.parameters[at].offset;
    const Range held{std::max(local.begin, offset),
                     std::min(local.end, offset + shape.parameters[at].elements())};
    if (held.size() <= 0) continue;
    const ParameterShape& logical = logical_[static_cast<size_t>(unit)][at];
    const ElementRuns whole = parameter_runs(logical, x_.place(rank), y_.place(rank));
    visit(logical, held, slice(whole, held.begin - offset, held.end - offset));
  }
}

ElementRuns Layout::pieces(int64_t unit, int64_t rank, Range local) const {
  ElementRuns all;
  for_each_parameter(unit, rank, local, [&](const ParameterShape&, Range, const ElementRuns& runs) {
    append(all, runs);
  });
  return all;
}

std::vector<LocalPiece> Layout::written_pieces(int64_t unit, int64_t rank, Range local) const {
  if (!is_first_stage(unit, rank)) return {};
  return sent_pieces(unit, rank, local);
}

int64_t Layout::sender(int64_t unit, int64_t rank) const {
  return position(rank) + (is_first_stage(unit, rank) ? 0 : positions());
}

std::vector<LocalPiece> Layout::sent_pieces(int64_t unit, int64_t rank, Range local) const {
  std::vector<LocalPiece> pieces;
  for_each_parameter(unit, rank, local,
                     [&](const ParameterShape& parameter, Range held, const ElementRuns& runs) {
                       const ParameterSplit& split = parameter.split;
                       if (!is_first(split.x.dim >= 0, split.y.dim >= 0, rank)) return;
                       if (pieces.empty() || pieces.back().local.end != held.begin)
                         pieces.push_back({{held.begin, held.begin}, {}});
                       pieces.back().local.end = held.end;
                       append(pieces.back().runs, runs);
                     });
  return pieces;
}

}  // namespace strait
