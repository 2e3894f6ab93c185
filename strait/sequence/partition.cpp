#include "strait/sequence/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "strait/base/errors.h"
#include "strait/sequence/balanced.h"
#include "strait/sequence/buckets.h"
#include "strait/sequence/hybrid.h"

namespace strait::sequence {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The `count` least loaded buckets with room for `tokens`, ascending; empty when there are fewer.
/// Ties by index.
std::vector<int32_t> least_loaded(const std::vector<Bucket>& buckets, int64_t count,
                                  int64_t tokens) {
  std::vector<int32_t> chosen;
  for (int32_t bucket = 0; bucket < std::ssize(buckets); ++bucket)
    if (buckets[static_cast<size_t>(bucket)].room >= tokens) chosen.push_back(bucket);
  if (std::ssize(chosen) < count) return {};
  const auto by_load = [&](int32_t at) {
    return std::pair(buckets[static_cast<size_t>(at)].load, at);
  };
  if (std::ssize(chosen) > count) {
    std::ranges::nth_element(chosen, chosen.begin() + count, {}, by_load);
    chosen.resize(static_cast<size_t>(count));
    std::ranges::sort(chosen);
  }
  return chosen;
}

/// One attempt to place a batch with given thresholds.
class Attempt {
 public:
  Attempt(const Batch& batch, const PartitionOptions& options)
      : lengths_(batch.lengths),
        options_(options),
        order_(batch.longest_first),
        ranks_(static_cast<size_t>(options.grid.ranks()), {0, options.capacity_tokens}) {
    for (const int64_t length : lengths_) work_ += work_of(length);
    plan_.grid = options.grid;
    plan_.lengths.assign(lengths_.begin(), lengths_.end());
  }

  /// The length at which a level found no room, or 0: `plan()` is whole.
  int64_t level_one(int64_t split_between) {
    const RankGrid& grid = options_.grid;
    nodes_ = Buckets(grid.nodes, grid.per_node * options_.capacity_tokens);
    in_node_.assign(static_cast<size_t>(grid.nodes), {});
    for (const int32_t document : order_) {
      const int64_t length = length_of(document);
      const int32_t node = nodes_.lightest_with(length);
      const bool split = node < 0 || (length > split_between && others_are_lighter(node, length));
      if (split && between(document, split_between)) continue;
      if (node < 0) return length;
      nodes_.take(node, work_of(length), length);
      in_node_[static_cast<size_t>(node)].push_back(document);
    }
    return 0;
  }

  int64_t level_two(int64_t node, int64_t split_inside) {
    const int64_t per_node = options_.grid.per_node, first = node * per_node;
    std::vector<Bucket> ranks(ranks_.begin() + first, ranks_.begin() + first + per_node);
    std::vector<Group> alone(static_cast<size_t>(per_node)), rings;
    for (const int32_t document : in_node_[static_cast<size_t>(node)]) {
      const int64_t length = length_of(document);
      const int32_t rank = length > split_inside ? -1 : lightest(ranks, length);
      if (rank >= 0) {
        take(ranks[static_cast<size_t>(rank)], length, 1);
        alone[static_cast<size_t>(rank)].documents.push_back(document);
      } else if (!inside({document, first, split_inside}, ranks, rings)) {
        return length;
      }
    }
    for (int64_t rank = 0; rank < per_node; ++rank)
      alone[static_cast<size_t>(rank)].ranks = {static_cast<int32_t>(first + rank)};
    for (auto* groups : {&alone, &rings})
      std::ranges::move(*groups, std::back_inserter(plan_.groups));
    return 0;
  }

  Plan plan() && {
    finish_groups(plan_);
    return std::move(plan_);
  }

 private:
  double work_of(int64_t length) const {
    return square(length) + options_.token_squares * static_cast<double>(length);
  }
  int64_t length_of(int32_t document) const { return lengths_[static_cast<size_t>(document)]; }

  void take(Bucket& bucket, int64_t length, int64_t ring) const {
    bucket.load += work_of(length) / static_cast<double>(ring);
    bucket.room -= most_of_ring(length, ring);
  }

  /// Whether splitting over nodes evens them out: placed whole, the node would stand above the
  /// mean.
  bool others_are_lighter(int32_t node, int64_t length) const {
    return options_.grid.nodes > 1 &&
           nodes_[node].load + work_of(length) > work_ / static_cast<double>(options_.grid.nodes);
  }

  bool between(int32_t document, int64_t split_between) {
    const RankGrid& grid = options_.grid;
    const int64_t length = length_of(document);
    if (grid.nodes == 1) return false;
    const int64_t needed = ceil_div(length, grid.per_node * options_.capacity_tokens);
    const int64_t even =
        static_cast<int64_t>(std::ceil(work_of(length) * static_cast<double>(grid.nodes) / work_));
    const int64_t hidden = std::max<int64_t>(2, 2 * length / std::max<int64_t>(1, split_between));
    int64_t count = std::clamp(std::max(needed, std::min(even, hidden)), int64_t{2}, grid.nodes);
    for (; count <= grid.nodes; ++count) {
      const int64_t ring = count * grid.per_node, share = most_of_ring(length, ring);
      const std::vector<int32_t> nodes = least_loaded(nodes_.all(), count, share * grid.per_node);
      if (nodes.empty()) continue;
      Group group{.zone = Zone::kInter, .documents = {document}};
      for (const int32_t node : nodes) {
        nodes_.take(node, work_of(length) / static_cast<double>(count), share * grid.per_node);
        for (int64_t rank = node * grid.per_node; rank < (node + 1) * grid.per_node; ++rank) {
          group.ranks.push_back(static_cast<int32_t>(rank));
          take(ranks_[static_cast<size_t>(rank)], length, ring);
        }
      }
      plan_.groups.push_back(std::move(group));
      return true;
    }
    return false;
  }

  struct Split {
    int32_t document;
    int64_t first_rank, threshold;
  };
  bool inside(const Split& split, std::vector<Bucket>& ranks, std::vector<Group>& rings) const {
    const int64_t length = length_of(split.document), most = static_cast<int64_t>(ranks.size());
    int64_t ring = std::clamp(ceil_div(length, std::max<int64_t>(1, split.threshold)), int64_t{2},
                              std::max<int64_t>(2, most));
    for (; ring <= most; ++ring) {
      std::vector<int32_t> chosen = least_loaded(ranks, ring, most_of_ring(length, ring));
      if (chosen.empty()) continue;
      for (int32_t& rank : chosen) {
        take(ranks[static_cast<size_t>(rank)], length, ring);
        rank += static_cast<int32_t>(split.first_rank);
      }
      rings.push_back(
          {.zone = Zone::kIntra, .ranks = std::move(chosen), .documents = {split.document}});
      return true;
    }
    // A length above the threshold is not split where no two ranks have room, but one has.
    const int32_t rank = lightest(ranks, length);
    if (rank < 0) return false;
    take(ranks[static_cast<size_t>(rank)], length, 1);
    rings.push_back(
        {.ranks = {static_cast<int32_t>(split.first_rank) + rank}, .documents = {split.document}});
    return true;
  }

  std::span<const int64_t> lengths_;
  const PartitionOptions& options_;
  const std::vector<int32_t>& order_;
  double work_ = 0;
  Buckets nodes_;
  std::vector<Bucket> ranks_;
  std::vector<std::vector<int32_t>> in_node_;
  Plan plan_;
};

/// Thresholds from a start downwards through the lengths of the batch, in strides that double.
class Thresholds {
 public:
  explicit Thresholds(const Batch& batch) : lengths_(batch.lengths), order_(batch.longest_first) {}

  /// Below `threshold`; 0 after the last one.
  int64_t next(int64_t threshold) {
    while (at_ < order_.size() && lengths_[static_cast<size_t>(order_[at_])] >= threshold) ++at_;
    if (at_ >= order_.size()) return 0;
    const int64_t found = lengths_[static_cast<size_t>(order_[at_])];
    at_ += stride_ - 1;
    stride_ *= 2;
    return found;
  }

 private:
  std::span<const int64_t> lengths_;
  const std::vector<int32_t>& order_;
  size_t at_ = 0, stride_ = 1;
};

/// A batch on the same ranks, but with thresholds that no document passes any more.
std::optional<Plan> attempt(const Batch& batch, const PartitionOptions& options,
                            int64_t split_between) {
  Attempt trial(batch, options);
  if (trial.level_one(split_between) > 0) return std::nullopt;
  for (int64_t node = 0; node < options.grid.nodes; ++node) {
    Thresholds thresholds(batch);
    for (int64_t inside = options.split_inside; trial.level_two(node, inside) > 0;) {
      if (inside == 0) return std::nullopt;
      inside = thresholds.next(inside);
    }
  }
  return std::move(trial).plan();
}

[[noreturn]] void refuse_capacity(const std::string& message) {
  ErrorPlace place;
  place.key = "sequence.capacity_tokens";
  throw UserError(message, place);
}

void check_capacity(std::span<const int64_t> lengths, const PartitionOptions& options) {
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const int64_t ranks = options.grid.ranks();
  if (tokens <= ranks * options.capacity_tokens) return;
  refuse_capacity(
      fmt::format("sequence.capacity_tokens = {}: a batch of {} tokens is more than {} ranks hold "
                  "({}); nearest: {}",
                  options.capacity_tokens, tokens, ranks, ranks * options.capacity_tokens,
                  ceil_div(tokens, ranks)));
}

/// Documents to the rank that has the fewest tokens, longest first.
void pack(Plan& plan, const std::vector<int32_t>& order) {
  const int64_t room = std::accumulate(plan.lengths.begin(), plan.lengths.end(), int64_t{0});
  Buckets ranks(plan.grid.ranks(), room);
  std::vector<Group> alone(ranks.all().size());
  for (size_t rank = 0; rank < alone.size(); ++rank)
    alone[rank].ranks = {static_cast<int32_t>(rank)};
  for (const int32_t document : order) {
    const int64_t length = plan.lengths[static_cast<size_t>(document)];
    const int32_t rank = ranks.lightest_with(length);
    alone[static_cast<size_t>(rank)].documents.push_back(document);
    ranks.take(rank, static_cast<double>(length), length);
  }
  plan.groups = std::move(alone);
}

}  // namespace

Batch::Batch(std::span<const int64_t> of) : lengths(of), longest_first(of.size()) {
  check_lengths(lengths);
  std::iota(longest_first.begin(), longest_first.end(), 0);
  std::ranges::sort(longest_first, {}, [&](int32_t document) {
    return std::pair(-lengths[static_cast<size_t>(document)], document);
  });
}

Plan partition(const Batch& batch, const PartitionOptions& options) {
  const std::span<const int64_t> lengths = batch.lengths;
  check_capacity(lengths, options);
  Thresholds thresholds(batch);
  for (int64_t between = options.split_between;;) {
    if (std::optional<Plan> plan = attempt(batch, options, between)) return std::move(*plan);
    if (between == 0) break;
    between = thresholds.next(between);
  }
  Plan balanced = balanced_plan(batch, options.grid);
  if (const int64_t enough = most_tokens(balanced); enough > options.capacity_tokens)
    refuse_capacity(fmt::format(
        "sequence.capacity_tokens = {}: no split of the {} documents leaves every one of {} ranks "
        "with as few tokens; nearest: {}",
        options.capacity_tokens, lengths.size(), options.grid.ranks(), enough));
  return balanced;
}

const char* baseline_name(Baseline baseline) {
  static constexpr const char* kNames[kNumBaselines] = {"packed", "even", "gathered", "heads",
                                                        "hybrid"};
  return kNames[static_cast<size_t>(baseline)];
}

Plan baseline_plan(const Batch& batch, const PartitionOptions& options, Baseline baseline) {
  const std::span<const int64_t> lengths = batch.lengths;
  Plan plan{options.grid, {lengths.begin(), lengths.end()}, {}};
  if (lengths.empty()) return plan;
  if (baseline == Baseline::kPacked) {
    pack(plan, batch.longest_first);
  } else if (baseline == Baseline::kHybrid) {
    place_hybrid(batch, options.capacity_tokens, plan);
  } else {
    Group all{.zone = options.grid.nodes > 1     ? Zone::kInter
                      : options.grid.ranks() > 1 ? Zone::kIntra
                                                 : Zone::kLocal,
              .engine = baseline == Baseline::kEven       ? Engine::kRing
                        : baseline == Baseline::kGathered ? Engine::kGathered
                                                          : Engine::kHeads};
    all.ranks.resize(static_cast<size_t>(options.grid.ranks()));
    std::iota(all.ranks.begin(), all.ranks.end(), 0);
    all.documents.resize(lengths.size());
    std::iota(all.documents.begin(), all.documents.end(), 0);
    plan.groups = {std::move(all)};
  }
  finish_groups(plan);
  return plan;
}

bool fits(const Plan& plan, int64_t capacity_tokens) {
  // A bound is cheaper than exact counts, and mostly enough.
  std::vector<int64_t> most(static_cast<size_t>(plan.grid.ranks()), 0);
  for (const Group& group : plan.groups) {
    int64_t tokens = 0;
    for (const int32_t document : group.documents)
      tokens += most_of_ring(plan.lengths[static_cast<size_t>(document)],
                             static_cast<int64_t>(group.ranks.size()));
    for (const int32_t rank : group.ranks) most[static_cast<size_t>(rank)] += tokens;
  }
  if (std::ranges::all_of(most, [&](int64_t tokens) { return tokens <= capacity_tokens; }))
    return true;
  return std::ranges::all_of(loads(plan),
                             [&](const Load& load) { return load.tokens <= capacity_tokens; });
}

}  // namespace strait::sequence
