#include "strait/plan/trials.h"

#include <iterator>
#include <utility>

namespace strait::plan {
namespace {

std::string largest_part(const program::MemoryUse& use) {
  const std::pair<int64_t, const char*> parts[] = {
      {use.weights, "weights"},         {use.gradients, "gradients"}, {use.optimizer, "optimizer"},
      {use.activations, "activations"}, {use.secondary, "secondary"}, {use.buffers, "buffers"}};
  return std::max_element(std::begin(parts), std::end(parts))->second;
}

}  // namespace

void reject(Rejection rejection, SearchResult& result) {
  const auto known = std::ranges::find_if(result.rejected, [&](const Rejection& one) {
    return one.reason == rejection.reason && one.family == rejection.family;
  });
  if (known == result.rejected.end()) return result.rejected.push_back(std::move(rejection));
  rejection.count += known->count;
  const bool nearer = rejection.needs_bytes < known->needs_bytes;
  known->count = rejection.count;
  if (nearer) *known = std::move(rejection);
}

void refuse(Rejection refused, SearchResult& result) {
  result.enumerated += refused.count;
  reject(std::move(refused), result);
}

void keep(Candidate candidate, const std::string& family, int64_t count, SearchResult& result) {
  result.enumerated += count;
  if (candidate.fits()) return result.candidates.push_back(std::move(candidate));
  Run run = candidate.design.run;
  run.train.micro_batch_size = candidate.design.batch.micro_batch_size;  // which 0 leaves open
  reject({family, "memory", count, candidate.memory.total(), candidate.has_bytes(),
          largest_part(candidate.memory), candidate_text(run)},
         result);
}

void add(SearchResult part, SearchResult& result) {
  result.enumerated += part.enumerated;
  std::ranges::move(part.candidates, std::back_inserter(result.candidates));
  for (Rejection& rejection : part.rejected) reject(std::move(rejection), result);
}

}  // namespace strait::plan
