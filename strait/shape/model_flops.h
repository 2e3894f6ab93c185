// The work of documents, which grows with their length.
#pragma once

#include <cstdint>
#include <span>

#include "strait/shape/shape.h"

namespace strait {

/// Floating-point operations of the model, forward and backward, on sequences of these lengths
/// together (model_flops_per_token).
double model_flops(const ModelShape& model, std::span<const int64_t> lengths);

}  // namespace strait
