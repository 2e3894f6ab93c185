// Which device a run gets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "strait/tensor/device.h"

namespace strait::tensor {

/// Devices that `kind` names on this machine; 0 when the program was built without them.
int64_t num_cuda_devices();

/// `kind` is "auto", "cpu" (null: plain memory) or "cuda" (device number `index`). UserError with
/// the key runtime.device and the nearest valid choice when the program was built without CUDA,
/// when there is no device, or not that one.
std::shared_ptr<Device> open_device(const std::string& kind, int64_t index = 0);

}  // namespace strait::tensor
