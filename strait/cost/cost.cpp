#include "strait/cost/cost.h"

#include <algorithm>
#include <cmath>

#include "strait/base/errors.h"
#include "strait/collective/choose.h"
#include "strait/collective/of_op.h"
#include "strait/program/transfer.h"

namespace strait::cost {

using program::Group;
using program::Op;
using program::OpKind;
using program::Program;

namespace {

/// Members of a group that share one group of `level` with a given member, itself included. Groups are
/// laid so that every member sees the same number.
int64_t members_within(const Group& group, const Cluster& cluster, int64_t level) {
  const int64_t ranks = cluster.group_size(level);
  if (group.stride >= ranks) return 1;
  return std::min(group.size, ranks / group.stride);
}

/// How a group lies on the levels.
collective::Spread spread_of(const Group& group, const Cluster& cluster) {
  collective::Spread spread;
  for (size_t level = 0; level < cluster.levels.size(); ++level)
    spread.push_back(members_within(group, cluster, static_cast<int64_t>(level)));
  return spread;
}

/// Bytes of the whole vector that the group of `rank` moves.
double vector_bytes(const Program& program, const Op& op, int64_t rank) {
  if (op.kind == OpKind::kBarrier) return 0;
  return static_cast<double>(program::transfer_split(program, op, rank).elements() *
                             dtype_bytes(program::transfer_array(program, op).dtype));
}

/// The rank that stands for its class: shards shrink with the rank.
int64_t first_rank(const Program& program) {
  return program.members.empty() ? 0 : program.members.front();
}

double seconds_of(double amount, double per_second) {
  return amount > 0 ? amount / per_second : 0.0;
}

class Pricer {
 public:
  Pricer(const Program& program, const Cluster& cluster) : program_(program), cluster_(cluster) {
    cost_.level_bytes.assign(cluster.levels.size(), 0);
  }
  void nodes(const std::vector<program::Node>& nodes, int64_t times) {
    for (const program::Node& node : nodes) {
      if (const Op* op = std::get_if<Op>(&node))
        one(*op, times);
      else
        this->nodes(std::get<program::Repeat>(node).body,
                    times * std::get<program::Repeat>(node).count);
    }
  }
  Cost take() { return std::move(cost_); }

 private:
  void one(const Op& op, int64_t times) {
    if (!program::is_communication(op.kind)) {
      cost_.compute_seconds += static_cast<double>(times) * compute_seconds(program_, op, cluster_);
      cost_.flops +=
          static_cast<double>(times) * program::cost_of(program_, op, first_rank(program_)).flops;
      return;
    }
    cost_.communication_seconds +=
        static_cast<double>(times) * transfer_seconds(program_, op, 0, cluster_);
    const std::vector<int64_t> bytes = all_groups(op);
    for (size_t level = 0; level < bytes.size(); ++level) {
      if (bytes[level] == 0) continue;
      const int64_t metadata = program::metadata_in(op, bytes[level]);
      const int64_t payload = bytes[level] - metadata;
      cost_.level_bytes[level] += times * payload;
      const int64_t groups = cluster_.ranks;  // every rank sends once per operation and level
      cost_.traffic.add(collective::operation_name(collective::operation_of(op.kind)),
                        static_cast<int64_t>(level), op.codec, times * payload, times * metadata,
                        times * groups);
    }
  }

  /// Bytes per level, summed over the groups that tile the world. An all-reduce moves the operand that its
  /// ranks hold, which may be a shard that differs between groups.
  std::vector<int64_t> all_groups(const Op& op) const {
    const Group& group = program_.groups[op.group];
    const int64_t element = dtype_bytes(program::transfer_array(program_, op).dtype);
    const int64_t groups = cluster_.ranks / group.size;
    int64_t bytes = 0;
    if (op.kind == OpKind::kAllReduce) {
      const auto& array = program::transfer_array(program_, op);
      if (array.group < 0)
        bytes = groups * array.partition.elements * element;
      else  // shards of one whole vector: groups across hold its parts, one replica set after another
        bytes = groups / program_.groups[array.group].parts() * array.partition.elements * element;
    } else {
      // Hops inside cut the vector: as many groups as there are parts before this one move all of it.
      const int64_t pieces = op.kind == OpKind::kAllToAll ? 1 : group.parts() / group.size;
      bytes = groups / pieces * op.partition.elements * element;
    }
    std::vector<int64_t> by_level;
    const collective::Spread spread = spread_of(group, cluster_);
    for (const double share : collective::relative_traffic(collective::operation_of(op.kind),
                                                           algorithm_of(op, spread), spread))
      by_level.push_back(bytes * std::llround(share));
    return by_level;
  }

  collective::Algorithm algorithm_of(const Op& op, const collective::Spread& spread) const {
    return collective::choose(collective::operation_of(op.kind), vector_bytes(program_, op, 0),
                              spread, cluster_);
  }

  const Program& program_;
  const Cluster& cluster_;
  Cost cost_;
};

}  // namespace

double compute_seconds(const Program& program, const Op& op, const Cluster& cluster) {
  const program::KernelCost cost = program::cost_of(program, op, first_rank(program));
  if (op.kernel == nullptr) return 0;
  switch (op.kernel->bound) {
    case program::Bound::kNothing:
      return 0;
    case program::Bound::kProducts:
      return seconds_of(cost.flops, cluster.model_flops_per_second(cost.dtype));
    case program::Bound::kMemory:
      return seconds_of(cost.bytes, cluster.memory_bytes_per_second);
    case program::Bound::kCodec:
      break;
  }
  const bool known = cluster.codec_bytes_per_second > 0;
  return seconds_of(cost.bytes,
                    known ? cluster.codec_bytes_per_second : cluster.memory_bytes_per_second);
}

double transfer_seconds(const Program& program, const Op& op, int64_t rank,
                        const Cluster& cluster) {
  const Group& group = program.groups[op.group];
  if (group.size == 1) return 0;
  const double vector = vector_bytes(program, op, rank);
  const collective::Operation operation = collective::operation_of(op.kind);
  const collective::Spread spread = spread_of(group, cluster);
  return collective::transfer_seconds(
      operation, collective::choose(operation, vector, spread, cluster), vector, spread, cluster);
}

Cost price(const Program& program, const Cluster& cluster) {
  Pricer pricer(program, cluster);
  pricer.nodes(program.body, 1);
  return pricer.take();
}

}  // namespace strait::cost
