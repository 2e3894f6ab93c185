// Sums of squares that do not depend on how many threads make them.
#pragma once

#include <cstdint>
#include <span>

namespace strait::optim {

/// Elements of one chunk of a norm; borders count from the start of the span.
inline constexpr int64_t kNormChunkElements = 16384;

/// Sum of squares in double. Chunks of kNormChunkElements are summed on their own, in sixteen
/// interleaved partial sums, and then added in order: the bits depend on the values and the start
/// of the span only, not on threads or vector width. A NaN anywhere gives NaN; an infinity gives
/// infinity or NaN; a double whose square overflows gives infinity. Floats cannot overflow.
/// Blocking; threads as adamw_update. 0 for an empty span. Error: at most n/16 + n/16384 + 16
/// roundings of positive terms, so a relative error below (n/16384 + 1040) * 2^-53.
double squared_norm(std::span<const float> values, int threads);
double squared_norm(std::span<const double> values, int threads);

}  // namespace strait::optim
