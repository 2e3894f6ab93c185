// The documents that windows of a context hold: how far attention reaches in them.
#pragma once

#include <cstdint>

#include "strait/data/corpus.h"

namespace strait {

/// Of the piece in which a token stands, on average over the windows of `context` tokens into which
/// a SequenceLoader cuts the part, at any phase: documents end at the borders of windows too. The
/// context for one stream. Cost: O(documents); where they begin with a token, reads the first 2^24
/// tokens, which stand for all.
double attended_in_windows(const TokenPart& part, int64_t context);

}  // namespace strait
