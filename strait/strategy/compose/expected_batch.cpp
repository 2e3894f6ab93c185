#include "strait/strategy/compose/expected_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "strait/config/document_rows.h"
#include "strait/config/keys.h"
#include "strait/data/document_loader.h"
#include "strait/data/document_windows.h"
#include "strait/sequence/balanced.h"
#include "strait/sequence/chunks.h"
#include "strait/sequence/remap.h"

namespace strait::strategy {
namespace {

constexpr int64_t kTriedBatches = 32, kTriedRows = 512;
constexpr int64_t kDistinctRows = 4;

TokenBatches batches_of(const Run& run, const Corpus& corpus) {
  return {corpus, run.model.shape.context, run.train.global_batch_tokens, run.seed};
}

/// Rows of the run's first batches.
struct TriedRows {
  DocumentRows rows;
  std::vector<RowLengths> batches;
};
TriedRows tried_rows(const Run& run, int64_t data_ranks, const Corpus& corpus) {
  const TokenBatches batches = batches_of(run, corpus);
  TriedRows tried{document_rows(run, data_ranks), {}};
  const int64_t rows = tried.rows.per_rank * data_ranks;
  DocumentLoader loader(batches, {rows, tried.rows.tokens, tried.rows.documents});
  const int64_t count = std::clamp<int64_t>(kTriedRows / rows, 1, kTriedBatches);
  for (int64_t batch = 0; batch < std::min(count, run.train.steps); ++batch) {
    RowLengths& of_rows = tried.batches.emplace_back();
    for (int64_t row = 0; row < rows; ++row) of_rows.push_back(loader.lengths(batch, row));
  }
  return tried;
}

/// Of what a member has of a row.
int64_t pairs_of(const sequence::Share& share, const std::vector<int64_t>& lengths) {
  int64_t pairs = 0;
  for (const int64_t half : {0, 1}) {
    const int64_t begin = share.begin(half), end = begin + share.chunk();
    int64_t first = 0;
    for (const int64_t length : lengths) {
      const int64_t from = std::max(begin, first), to = std::min(end, first + length);
      if (from < to)
        pairs += sequence::causal_pairs(to - first) - sequence::causal_pairs(from - first);
      first += length;
    }
  }
  return pairs;
}

/// In attention and beside it.
int64_t most_rows(const sequence::Plan& plan) {
  const std::vector<int64_t> linear = sequence::remap_of(plan).targets;
  return sequence::most_tokens(plan) + *std::ranges::max_element(linear);
}

/// The split that sequence.engine wants whatever the capacity; nothing where it asks for that.
std::optional<sequence::Baseline> unasked_split(const Run& run) {
  if (run.sequence.engine == "packed") return sequence::Baseline::kPacked;
  if (run.sequence.engine == "even") return sequence::Baseline::kEven;
  return std::nullopt;
}

/// A capacity that a run sets holds what the engine gives a rank; any holds each batch somehow.
void check_capacity(const Run& run, int64_t capacity, const std::vector<RowLengths>& tried) {
  const int64_t set = run.sequence.capacity_tokens;
  const sequence::RankGrid grid{1, run.mesh.axes.sequence};
  const auto split = set > 0 ? unasked_split(run) : std::nullopt;
  int64_t most = 0;
  for (const RowLengths& rows : tried)
    for (const std::vector<int64_t>& lengths : rows) {
      const sequence::Batch batch(lengths);
      const sequence::Plan plan = split ? baseline_plan(batch, {grid, capacity}, *split)
                                        : sequence::balanced_plan(batch, grid);
      most = std::max(most, sequence::most_tokens(plan));
    }
  if (most <= capacity) return;
  const int64_t row = document_rows(run, std::ssize(tried.front())).documents;
  refuse_key(run, "sequence.capacity_tokens",
             fmt::format("sequence.capacity_tokens = {}: sequence.engine = \"{}\" gives a rank {} "
                         "tokens of a batch, and it has {} rows; the nearest valid value is {}; {} "
                         "holds any batch",
                         set, run.sequence.engine, most, capacity, most,
                         std::max(most, sequence::enough_capacity(row, grid.ranks()))));
}

/// Programs are composed for every plan, so of many rows few stand for all: the one of most weight
/// for itself, and of as many parts of the others, by weight, the middle one for its part.
RowLengths represented(const RowLengths& rows, const std::vector<double>& weights) {
  const int64_t others = std::ssize(rows) - 1, parts = kDistinctRows - 1;
  if (others <= parts) return rows;
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t row) { return weights[row]; });
  RowLengths result = rows;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = 1 + others * part / parts, end = 1 + others * (part + 1) / parts;
    for (int64_t at = begin; at < end; ++at)
      result[order[static_cast<size_t>(at)]] = rows[order[static_cast<size_t>((begin + end) / 2)]];
  }
  return result;
}

ExpectedLengths expected_of(const BatchPlanner& planner, const std::vector<RowLengths>& tried) {
  std::vector<std::pair<double, size_t>> times;
  std::vector<std::pair<int64_t, size_t>> widest(tried.front().size(), {-1, 0});  // by row
  for (size_t batch = 0; batch < tried.size(); ++batch) {
    times.emplace_back(0, batch);
    for (size_t row = 0; row < widest.size(); ++row) {
      const auto plan = planner.plan(tried[batch][row]);
      times.back().first = std::max(times.back().first, planner.price(*plan).layer());
      widest[row] = std::max(widest[row], {most_rows(*plan), batch});
    }
  }
  const auto median = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), median, times.end());
  const RowLengths& standing = tried[median->second];
  RowLengths of_most;
  std::vector<double> seconds, tokens;
  for (size_t row = 0; row < widest.size(); ++row) {
    seconds.push_back(planner.price(*planner.plan(standing[row])).layer());
    tokens.push_back(static_cast<double>(widest[row].first));
    of_most.push_back(tried[widest[row].second][row]);
  }
  return {represented(standing, seconds), represented(of_most, tokens)};
}

}  // namespace

int64_t attended_length(const Run& run, const Corpus& corpus) {
  if (run.train.global_batch_tokens > 0) return batches_of(run, corpus).attended_length();
  if (!corpus.training.has_documents()) return 0;
  const double length = attended_in_windows(corpus.training, run.model.shape.context);
  return std::max<int64_t>(1, std::llround(length));
}

ExpectedLengths expected_lengths(const Run& run, int64_t data_ranks, const BatchPlanner& planner,
                                 const Corpus& corpus) {
  const TriedRows tried = tried_rows(run, data_ranks, corpus);
  const RowLengths none(static_cast<size_t>(data_ranks));
  if (tried.batches.empty()) return {none, none};
  check_capacity(run, tried.rows.tokens / run.mesh.axes.sequence, tried.batches);
  return expected_of(planner, tried.batches);
}

double slowest_attention(const Run& run, int64_t data_ranks, int64_t members,
                         const Corpus& corpus) {
  if (run.train.global_batch_tokens == 0 || plans_documents(run)) return 1;
  const TriedRows tried = tried_rows(run, data_ranks, corpus);
  double slowest = 0, mean = 0;
  for (const RowLengths& rows : tried.batches) {
    std::vector<double> of_ranks(static_cast<size_t>(data_ranks), 0);
    for (size_t row = 0; row < rows.size(); ++row) {
      int64_t most = 0, all = 0;
      for (int64_t member = 0; member < members; ++member) {
        const int64_t pairs = pairs_of({members, member, tried.rows.tokens / members}, rows[row]);
        most = std::max(most, pairs);
        all += pairs;
      }
      of_ranks[row / static_cast<size_t>(tried.rows.per_rank)] += static_cast<double>(most);
      mean += static_cast<double>(all) / static_cast<double>(members * data_ranks);
    }
    slowest += *std::ranges::max_element(of_ranks);
  }
  return mean > 0 ? slowest / mean : 1;
}

}  // namespace strait::strategy
