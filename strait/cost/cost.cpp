#include "strait/cost/cost.h"

#include <algorithm>
#include <cmath>

#include "strait/base/errors.h"
#include "strait/codec/borders.h"
#include "strait/collective/choose.h"
#include "strait/collective/of_op.h"
#include "strait/program/classes.h"
#include "strait/program/transfer.h"

namespace strait::cost {

using program::Group;
using program::Op;
using program::OpKind;
using program::Program;

namespace {

/// Members of a strided group that share one group of `level` with a given member, itself included.
/// Groups are laid so that every member sees the same number.
int64_t members_within(const Group& group, const Cluster& cluster, int64_t level) {
  const int64_t ranks = cluster.group_size(level);
  if (group.stride >= ranks) return 1;
  return std::min(group.size, ranks / group.stride);
}

/// How a group lies on the levels.
collective::Spread spread_of(const Group& group, const Cluster& cluster) {
  if (!group.lists.empty()) return collective::spread_of(cluster, group.lists.lists().front());
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

double seconds_of(double amount, double per_second) {
  return amount > 0 ? amount / per_second : 0.0;
}

/// Sums up one class.
class Pricer {
 public:
  Pricer(const Program& program, const Cluster& cluster)
      : program_(program),
        cluster_(cluster),
        rank_(program::first_rank(program)),
        ranks_(program::class_size(program)),
        groups_(program.groups.size(), -1) {
    cost_.level_bytes.assign(cluster.levels.size(), 0);
    program::begin_loops(program, {}, loops_);
  }
  void nodes(const std::vector<program::Node>& nodes, int64_t times) {
    for (const program::Node& node : nodes) {
      if (const Op* op = std::get_if<Op>(&node))
        one(*op, times);
      else
        repeat(std::get<program::Repeat>(node), times);
    }
  }
  Cost take() { return std::move(cost_); }

 private:
  void repeat(const program::Repeat& repeat, int64_t times) {
    loops_[repeat.loop] = repeat.first;
    nodes(repeat.body, times * repeat.count);
  }

  void one(const Op& op, int64_t times) {
    if (!program::is_communication(op.kind)) {
      cost_.compute_seconds += static_cast<double>(times) * compute_seconds(program_, op, cluster_);
      cost_.flops += static_cast<double>(times) * program::cost_of(program_, op, rank_).flops;
      return;
    }
    // Of a peer that counts up with a loop, that of the first iteration.
    const int64_t peer = program::is_message(op.kind) ? program::evaluate(op.peer, loops_) : 0;
    cost_.communication_seconds +=
        static_cast<double>(times) * transfer_seconds(program_, op, rank_, cluster_, peer);
    if (op.kind == OpKind::kReceive || op.kind == OpKind::kBarrier) return;
    add_bytes(op, op.kind == OpKind::kSend ? messages(op, peer) : collectives(op), times);
  }

  void add_bytes(const Op& op, const std::vector<int64_t>& bytes, int64_t times) {
    for (size_t level = 0; level < bytes.size(); ++level) {
      if (bytes[level] == 0) continue;
      const int64_t metadata = program::metadata_in(op, bytes[level]);
      const int64_t payload = bytes[level] - metadata;
      cost_.level_bytes[level] += times * payload;
      // Every rank sends once per operation and level.
      cost_.traffic.add({collective::operation_name(collective::operation_of(op.kind)),
                         static_cast<int64_t>(level), codec::without_borders(op.codec),
                         times * payload, times * metadata, times * ranks_});
    }
  }

  /// Every rank of the class sends as far as its first one.
  std::vector<int64_t> messages(const Op& op, int64_t peer) const {
    std::vector<int64_t> by_level(cluster_.levels.size(), 0);
    const int64_t to = program_.groups[op.group].member(rank_, peer);
    by_level[cluster_.level_between(rank_, to)] =
        ranks_ * static_cast<int64_t>(vector_bytes(program_, op, rank_));
    return by_level;
  }

  /// Bytes per level, summed over the groups whose first member is of this class. An all-reduce
  /// moves the operand that its ranks hold, which may be a shard that differs between groups.
  std::vector<int64_t> collectives(const Op& op) {
    const Group& group = program_.groups[op.group];
    const int64_t element = dtype_bytes(program::transfer_array(program_, op).dtype);
    const int64_t groups = first_members(op.group);
    int64_t bytes = 0;
    const bool whole =
        op.kind == OpKind::kAllReduce || op.kind == OpKind::kBroadcast || op.kind == OpKind::kShift;
    if (whole) {
      const auto& array = program::transfer_array(program_, op);
      if (array.group < 0 || array.joined)
        bytes = groups * program::transfer_split(program_, op, rank_).elements() * element;
      else  // shards of one vector: groups across hold its parts, one set of replicas after another
        bytes = groups * array.partition.elements / program_.groups[array.group].parts() * element;
    } else {
      // Hops inside cut the vector: as many groups as there are parts before this one move all of
      // it.
      const int64_t pieces = op.kind == OpKind::kAllToAll ? 1 : group.parts() / group.size;
      bytes = groups * op.partition.elements / pieces * element;
    }
    std::vector<int64_t> by_level;
    const collective::Spread spread = spread_of(group, cluster_);
    const int64_t skipped = op.kind == OpKind::kShift ? op.peer.constant : 0;
    for (const double share : collective::relative_traffic(
             collective::operation_of(op.kind), algorithm_of(op, spread), spread, skipped))
      by_level.push_back(bytes * std::llround(share));
    return by_level;
  }

  /// Ranks of the class that are the first of their group.
  int64_t first_members(int number) {
    const Group& group = program_.groups[number];
    int64_t& count = groups_[number];
    if (count >= 0) return count;
    count = 0;
    if (program_.members.empty() && group.lists.empty()) return count = program_.ranks / group.size;
    for (const int64_t rank : program::class_ranks(program_)) count += group.position(rank) == 0;
    return count;
  }

  collective::Algorithm algorithm_of(const Op& op, const collective::Spread& spread) const {
    return collective::choose(collective::operation_of(op.kind), vector_bytes(program_, op, rank_),
                              spread, cluster_);
  }

  const Program& program_;
  const Cluster& cluster_;
  int64_t rank_, ranks_;
  std::vector<int64_t> groups_;  // first_members, by group; -1: not asked yet
  program::Loops loops_;         // in the first iteration of each
  Cost cost_;
};

}  // namespace

double compute_seconds(const Program& program, const Op& op, const Cluster& cluster) {
  const program::KernelCost cost = program::cost_of(program, op, program::first_rank(program));
  if (op.kernel == nullptr) return 0;
  switch (op.kernel->bound) {
    case program::Bound::kNothing:
      return 0;
    case program::Bound::kProducts:
      if (cost.library.calls > 0)
        return cluster.library_seconds(cost.dtype, cost.flops, cost.library);
      return cluster.block_seconds(cost.dtype, cost.flops, cost.attention_flops, cost.weights);
    case program::Bound::kMemory:
      return seconds_of(cost.bytes, cluster.memory_bytes_per_second);
    case program::Bound::kCodec:
      break;
  }
  const bool known = cluster.codec_bytes_per_second > 0;
  return seconds_of(cost.bytes,
                    known ? cluster.codec_bytes_per_second : cluster.memory_bytes_per_second);
}

double transfer_seconds(const Program& program, const Op& op, int64_t rank, const Cluster& cluster,
                        int64_t peer) {
  const Group& group = program.groups[op.group];
  if (group.size == 1) return 0;
  const double vector = vector_bytes(program, op, rank);
  if (program::is_message(op.kind))
    return collective::message_seconds(vector, {rank, group.member(rank, peer), program.ranks},
                                       cluster);
  const collective::Operation operation = collective::operation_of(op.kind);
  const collective::Spread spread = spread_of(group, cluster);
  return collective::transfer_seconds(
      operation, collective::choose(operation, vector, spread, cluster), vector, spread, cluster);
}

double lone_message_seconds(const Program& program, const Op& op, int64_t rank,
                            const Cluster& cluster, int64_t peer) {
  const Group& group = program.groups[op.group];
  if (group.size == 1) return 0;
  const int64_t level = cluster.level_between(rank, group.member(rank, peer));
  return collective::lone_message_seconds(vector_bytes(program, op, rank), cluster.levels[level]);
}

Cost price(std::span<const Program> classes, const Cluster& cluster) {
  Cost sum;
  sum.level_bytes.assign(cluster.levels.size(), 0);
  double flops = 0, ranks = 0;
  for (const Program& program : classes) {
    Pricer pricer(program, cluster);
    pricer.nodes(program.body, 1);
    Cost one = pricer.take();
    sum.traffic.merge(one.traffic);
    for (size_t level = 0; level < one.level_bytes.size(); ++level)
      sum.level_bytes[level] += one.level_bytes[level];
    if (one.compute_seconds + one.communication_seconds >=
        sum.compute_seconds + sum.communication_seconds) {
      sum.compute_seconds = one.compute_seconds;
      sum.communication_seconds = one.communication_seconds;
    }
    const double count = static_cast<double>(program::class_size(program));
    flops += count * one.flops;
    ranks += count;
    sum.flops = classes.size() == 1 ? one.flops : flops / ranks;
  }
  return sum;
}

}  // namespace strait::cost
