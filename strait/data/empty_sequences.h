// Sequences in which no token is predicted: those of documents of one token.
#pragma once

#include <cstdint>

#include "strait/data/corpus.h"

namespace strait {

/// Whether `context` consecutive tokens of the part may all end documents. Cost: that of
/// document_bounds.
bool may_have_empty_sequences(const TokenPart& part, int64_t context);

}  // namespace strait
