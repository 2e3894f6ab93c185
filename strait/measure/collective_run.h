// One collective on thread ranks, set up once, verified, and run again and again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/comm/communicator.h"
#include "strait/measure/rank_team.h"

namespace strait::measure {

struct CollectiveCase {
  std::string operation =
      "all-gather";  // all-gather reduce-scatter all-reduce all-to-all broadcast
  std::string backend = "threads";
  int64_t ranks = 2;
  std::optional<int64_t> bytes;   // the whole vector; else about 64 MiB
  Dtype dtype = Dtype::kFloat32;  // fp32 | fp64
  std::string codec = "none";

  int64_t vector_bytes() const { return bytes.value_or(equal_parts(64 << 20)); }
  /// `most` or less: parts of as many whole elements for every rank.
  int64_t equal_parts(int64_t most) const { return most - most % (ranks * dtype_bytes(dtype)); }
};

/// Value of element `i` as rank `rank` holds it before the operation: small integers, so that sums
/// are exact.
double start_value(int64_t rank, int64_t i);
/// Element `i` of what rank `rank` of `ranks` holds afterwards; `part`: elements of one rank's
/// part.
double wanted_value(comm::Operation operation, int64_t ranks, int64_t part, int64_t rank,
                    int64_t i);
/// Bytes that must be read plus written, over all ranks, with every rank's buffer in one memory.
/// V = whole vector, n = ranks: all-gather 2 (n-1) V, reduce-scatter (n+1) V, all-reduce 2 n V,
/// all-to-all 2 n V, broadcast 2 (n-1) V.
double moved_bytes(comm::Operation operation, int64_t ranks, int64_t vector_bytes);
comm::Operation operation_by_name(const std::string& name);
/// UserError naming the nearest choice for an unknown operation, codec or dtype, and for a vector
/// that has no equal parts.
void check_case(const CollectiveCase& collective);

/// The operations, by name.
const std::vector<std::string>& collective_operations();

/// All-gather works in place, the others from one buffer to another. Allocates at most 2 * ranks *
/// bytes.
class CollectiveRun {
 public:
  /// UserError, naming the nearest choice, for an operation, backend, codec or dtype that does not
  /// exist, and for a vector shorter than one element per rank. `team` has one thread per rank.
  CollectiveRun(RankTeam& team, const CollectiveCase& collective);
  ~CollectiveRun();
  CollectiveRun(const CollectiveRun&) = delete;
  CollectiveRun& operator=(const CollectiveRun&) = delete;

  /// Seconds of one operation, from the first rank's start to the last rank's end; the mean of
  /// `repeats` in a row.
  double run(int64_t repeats = 1);

  /// Runs once on values that tell rank and element apart, and compares every element that every
  /// rank received with its closed form (sums of small integers, exact). "" or the first
  /// difference.
  std::string check();

  double moved_bytes() const;

  int64_t vector_bytes() const;

 private:
  struct Rank;
  struct Backend;
  void prepare(int64_t rank);
  void fill(int64_t rank);
  std::string compare(int64_t rank) const;

  RankTeam& team_;
  CollectiveCase case_;
  int64_t elements_ = 0, part_ = 0;  // of the vector, of one rank's part
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace strait::measure
