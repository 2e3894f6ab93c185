// A CUDA device behind LibTorch. Only in programs that are built with CUDA (STRAIT_CUDA).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "strait/tensor/device.h"

namespace strait::tensor {

struct CudaCount {
  int64_t devices = 0;
  std::string reason;  // why there are none, as the driver says it
};
CudaCount count_cuda_devices();

/// Memory by cudaMalloc, queues as LibTorch's streams, marks as events. Threads that have entered
/// no queue work in LibTorch's current stream of the device. InputOutputError when it fails, with
/// CUDA's text.
std::shared_ptr<Device> make_cuda_device(int64_t index);

}  // namespace strait::tensor
