#include "strait/data/empty_sequences.h"

#include "strait/data/token_batches.h"

namespace strait {

bool may_have_empty_sequences(const TokenPart& part, int64_t context) {
  if (!part.has_documents()) return false;
  const std::vector<int64_t> bounds = document_bounds(part);
  int64_t run = 0;  // of documents of one token; the token before them ends a document too
  for (size_t i = 1; i + 1 < bounds.size(); ++i) {
    if (bounds[i] == bounds[i - 1]) continue;  // a document without tokens
    run = bounds[i] == bounds[i - 1] + 1 ? run + 1 : 1;
    if (run >= context) return true;
  }
  return false;
}

}  // namespace strait
