// Sums on the addresses of a device, in LibTorch's operations.
#pragma once

#include "strait/base/provided.h"
#include "strait/tensor/device.h"

namespace strait::tensor {

/// As sum_in_order.
inline constinit Provided<void(Device& device, const OrderedSum& sum)> sum_tensors;

}  // namespace strait::tensor
