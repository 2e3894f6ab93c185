// train.global_batch_tokens: the rows in which ranks hold whole documents. Sizes are the same for
// every batch, so that one program runs them all.
#pragma once

#include <cstdint>

#include "strait/config/run.h"

namespace strait {

/// Refuses sequence.capacity_tokens without train.global_batch_tokens, and that beside what cannot
/// act on documents: keys, and the nearest valid choice.
void check_document_rows(const Run& run);

/// Whether each batch has a plan of which ranks of the axis sequence have which documents:
/// sequence.engine packed, even, hybrid or zeppelin.
bool plans_documents(const Run& run);

struct DocumentRows {
  int64_t per_rank = 1;   // rows of a data-parallel rank
  int64_t tokens = 1;     // of a row, over all ranks that share it
  int64_t documents = 1;  // tokens of documents that a row holds at most: where batches are
                          // planned, less than there is room for
};

/// As few rows as data-parallel ranks, stages and micro-batches ask for, or where
/// sequence.capacity_tokens limits them as many as hold any batch, however its documents fall: of n
/// rows the fullest has at most (N - c) / n + c of N tokens in documents of at most c, and
/// first-fit needs at most 2 N / T + 1 rows of T tokens (Graham 1969; Johnson 1973). UserError (key
/// sequence.capacity_tokens) where a document may be longer than a row. Where batches are planned
/// there is one row of each data-parallel rank, and room for its documents and 1/8 more, if no
/// document is split for one more.
DocumentRows document_rows(const Run& run, int64_t data_ranks);

}  // namespace strait
