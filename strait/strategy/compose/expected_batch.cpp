#include "strait/strategy/compose/expected_batch.h"

#include <algorithm>
#include <utility>

#include "strait/config/document_rows.h"
#include "strait/data/document_loader.h"
#include "strait/sequence/remap.h"

namespace strait::strategy {
namespace {

constexpr int64_t kTriedBatches = 32;

TokenBatches batches_of(const Run& run, const Corpus& corpus) {
  return {corpus, run.model.shape.context, run.train.global_batch_tokens, run.seed};
}

/// In attention and beside it.
int64_t most_rows(const sequence::Plan& plan) {
  int64_t most = 0;
  for (const sequence::Load& load : sequence::loads(plan)) most = std::max(most, load.tokens);
  const std::vector<int64_t> linear = sequence::remap_of(plan).targets;
  return most + *std::ranges::max_element(linear);
}

}  // namespace

int64_t attended_length(const Run& run, const Corpus& corpus) {
  return batches_of(run, corpus).attended_length();
}

ExpectedLengths expected_lengths(const Run& run, int64_t data_ranks, const BatchPlanner& planner,
                                 const Corpus& corpus) {
  const TokenBatches batches = batches_of(run, corpus);
  const DocumentRows rows = document_rows(run, data_ranks);
  DocumentLoader loader(batches, {rows.per_rank * data_ranks, rows.tokens, rows.documents});
  std::vector<std::pair<double, int64_t>> tried;
  std::pair<int64_t, int64_t> widest{-1, 0};
  for (int64_t batch = 0; batch < std::min(kTriedBatches, run.train.steps); ++batch) {
    const auto plan = planner.plan(loader.lengths(batch, 0));
    tried.emplace_back(planner.price(*plan).attention_slowest, batch);
    widest = std::max(widest, {most_rows(*plan), batch});
  }
  if (tried.empty()) return {};
  const auto median = tried.begin() + std::ssize(tried) / 2;
  std::nth_element(tried.begin(), median, tried.end());
  return {loader.lengths(median->second, 0), loader.lengths(widest.second, 0)};
}

}  // namespace strait::strategy
