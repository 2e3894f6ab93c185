#include "strait/strategy/compose/expected_batch.h"

#include <algorithm>
#include <utility>

#include "strait/config/document_rows.h"
#include "strait/data/document_loader.h"

namespace strait::strategy {
namespace {

constexpr int64_t kTriedBatches = 32;

TokenBatches batches_of(const Run& run, const Corpus& corpus) {
  return {corpus, run.model.shape.context, run.train.global_batch_tokens, run.seed};
}

}  // namespace

int64_t attended_length(const Run& run, const Corpus& corpus) {
  return batches_of(run, corpus).attended_length();
}

std::vector<int64_t> expected_lengths(const Run& run, int64_t data_ranks,
                                      const BatchPlanner& planner, const Corpus& corpus) {
  const TokenBatches batches = batches_of(run, corpus);
  const DocumentRows rows = document_rows(run, data_ranks);
  DocumentLoader loader(batches, {rows.per_rank * data_ranks, rows.tokens, rows.documents});
  std::vector<std::pair<double, int64_t>> tried;
  for (int64_t batch = 0; batch < std::min(kTriedBatches, run.train.steps); ++batch)
    tried.emplace_back(planner.price(*planner.plan(loader.lengths(batch, 0))).attention_slowest,
                       batch);
  if (tried.empty()) return {};
  const auto median = tried.begin() + std::ssize(tried) / 2;
  std::nth_element(tried.begin(), median, tried.end());
  return loader.lengths(median->second, 0);
}

}  // namespace strait::strategy
