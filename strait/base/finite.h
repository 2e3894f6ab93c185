// Values that are no numbers, in memory of any element type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "strait/base/dtype.h"

namespace strait {

/// Index of the first NaN or infinity among elements of fp16, bf16, fp32 or fp64; nothing where all
/// are finite, and for whole numbers. Reads the bytes once.
std::optional<int64_t> first_non_finite(Dtype dtype, std::span<const std::byte> bytes);

}  // namespace strait
