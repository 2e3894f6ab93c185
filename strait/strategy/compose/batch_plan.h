// Which ranks of the axis sequence have which documents of a batch, as sequence.engine says: what a
// step's programs are composed for where batches are planned.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "strait/config/run.h"
#include "strait/sequence/price.h"
#include "strait/shape/shape.h"
#include "strait/topology/cluster.h"
#include "strait/topology/mesh.h"

namespace strait::strategy {

/// A pure function of the lengths: every rank makes the same plans. Immutable.
class BatchPlanner {
 public:
  /// `local`: the model as a rank holds it. Rates and links are those of `cluster`, whose innermost
  /// groups that the axis leaves are its nodes. `row_tokens`: rows of all ranks of the axis.
  BatchPlanner(const Run& run, const Cluster& cluster, const Mesh& mesh, const ModelShape& local,
               int64_t row_tokens);

  /// packed, even, hybrid (strait/sequence/partition.h) or, of these and of zones with their
  /// thresholds halved and doubled, the cheapest (zeppelin), each with tokens remapped as
  /// sequence.remap says, and heads exchanged as sequence.head_ranks says, or as is cheapest
  /// (auto). UserError (key sequence.capacity_tokens) where a rank would hold more than it has
  /// rows; names the nearest capacity.
  std::shared_ptr<const sequence::Plan> plan(std::span<const int64_t> lengths) const;
  sequence::Price price(const sequence::Plan& plan) const;
  const sequence::Layer& layer() const { return layer_; }

  /// What is planned where no batch is known: `tokens` in documents as long as the context, of
  /// which as many as there is room for.
  std::vector<int64_t> assumed_lengths(int64_t tokens) const;

 private:
  sequence::PriceOptions price_options() const;
  void decide_heads(const SequenceOptions& options, const sequence::RankGrid& grid);
  void decide_routing(const std::string& text, const sequence::RankGrid& grid);
  std::vector<sequence::Way> ways() const;
  void route(sequence::Plan& plan) const;
  sequence::Plan made(std::span<const int64_t> lengths) const;

  std::string engine_, remap_;
  int64_t least_proxies_ = 1, most_proxies_ = 1;
  int64_t most_pieces_ = 8;  // over one proxy: more cost more latencies than they hide
  int64_t least_rotations_ = 1, most_rotations_ = 1;
  int64_t most_both_ = 1;  // orders times proxies
  bool both_alone_ = false;
  std::vector<int64_t> head_ranks_ = {1};  // that a plan may take
  bool fills_;
  int64_t row_split_;
  int64_t context_;
  sequence::Machine machine_;
  sequence::Layer layer_;
  sequence::PartitionOptions options_;
};

}  // namespace strait::strategy
