// The devices that tests run on: the stand-in on the processor, and a CUDA device where there is
// one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strait/tensor/host_device.h"
#include "strait/tensor/open_device.h"

namespace strait::tensor {

inline std::vector<std::string> test_devices() {
  std::vector<std::string> kinds = {"shadow"};
  if (num_cuda_devices() > 0) kinds.push_back("cuda");
  return kinds;
}

/// Of the stand-in no byte can be reached but through it.
inline std::shared_ptr<Device> make_test_device(const std::string& kind) {
  if (kind == "cuda") return open_device("cuda");
  return std::make_shared<HostDevice>(int64_t{1} << 30);
}

}  // namespace strait::tensor
