// train.global_batch_tokens: the rows in which ranks hold whole documents. Sizes are the same for
// every batch, so that one program runs them all.
#pragma once

#include <cstdint>

#include "strait/config/run.h"

namespace strait {

/// Refuses sequence.capacity_tokens without train.global_batch_tokens, and that beside what cannot
/// act on documents: keys, and the nearest valid choice.
void check_document_rows(const Run& run);

struct DocumentRows {
  int64_t per_rank = 1;  // rows of a data-parallel rank
  int64_t tokens = 1;    // of a row, over all ranks that share it
};

/// As few rows as data-parallel ranks, stages and micro-batches ask for, or where
/// sequence.capacity_tokens limits them as many as hold any batch, however its documents fall: of n
/// rows the fullest has at most (N - c) / n + c of N tokens in documents of at most c, and
/// first-fit needs at most 2 N / T + 1 rows of T tokens (Graham 1969; Johnson 1973). UserError (key
/// sequence.capacity_tokens) where a document may be longer than a row.
DocumentRows document_rows(const Run& run, int64_t data_ranks);

}  // namespace strait
