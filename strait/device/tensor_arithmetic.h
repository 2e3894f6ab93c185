// Arithmetic in ATen operators, on the addresses of a device.
#pragma once

#include "strait/base/provided.h"
#include "strait/device/arithmetic.h"

namespace strait::device {

/// Sums of squares are made in fp64 in LibTorch's order; updates are those of optim/ up to
/// rounding, with LibTorch 2's fused AdamW where it is there. Codecs: none, bf16, and what
/// tensor_codec.h has.
inline constinit Provided<std::unique_ptr<Arithmetic>(tensor::Device& device)>
    make_tensor_arithmetic;

}  // namespace strait::device
