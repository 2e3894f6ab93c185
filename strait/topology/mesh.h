// The ranks as an array with named axes, innermost axis first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/topology/options.h"

namespace strait {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  int64_t stride = 1;  // distance in ranks between neighbours along this axis
};

/// Ranks laid on named axes. An immutable value; safe to share between threads.
class Mesh {
 public:
  /// Sizes of [mesh] for `ranks` ranks. Errors (UserError): sizes whose product is not the number
  /// of ranks, two "the rest" axes, an order that is no permutation; each names the nearest valid
  /// choice.
  Mesh(const MeshOptions& options, int64_t ranks);

  /// The same ranks with axis data cut into `replicas` parts, which lie along an axis "replica" of
  /// their own, outside of it. InternalError unless `replicas` divides the axis.
  Mesh with_replicas(int64_t replicas) const;

  int64_t ranks() const { return ranks_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }  // innermost first
  const MeshAxis& axis(const std::string& name) const;         // UserError names the nearest
  /// Place of a rank along an axis, in [0, axis size).
  int64_t coordinate(int64_t rank, const std::string& axis) const;
  /// Ranks that differ from `rank` only along `axis`, in the order of that axis.
  std::vector<int64_t> group(int64_t rank, const std::string& axis) const;
  /// Data-parallel ranks: data * z, of all replicas.
  int64_t data_ranks() const;

 private:
  std::vector<MeshAxis> axes_;
  int64_t ranks_ = 1;
};

/// Those that a run file names; "replica" is made by with_replicas alone.
const std::vector<std::string>& mesh_axis_names();

/// The size of every axis by name, innermost first; of "replica" where there are several.
Json mesh_json(const Mesh& mesh);

}  // namespace strait
