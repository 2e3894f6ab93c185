// A training part whose content shows where it comes from.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "strait/data/corpus.h"

namespace strait::testing {

/// Documents of these lengths; each token is its own position in the text.
inline Corpus numbered_documents(const std::vector<int64_t>& lengths) {
  Corpus corpus;
  corpus.source = "documents.txt";
  int64_t at = 0;
  for (const int64_t length : lengths) {
    corpus.training.document_starts.push_back(at);
    at += length;
  }
  std::vector<int32_t> tokens(static_cast<size_t>(at));
  std::iota(tokens.begin(), tokens.end(), 0);
  corpus.training.tokens = Tokens(std::move(tokens));
  return corpus;
}

}  // namespace strait::testing
