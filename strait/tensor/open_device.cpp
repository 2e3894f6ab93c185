#include "strait/tensor/open_device.h"

#include <fmt/format.h>

#include "strait/base/errors.h"
#include "strait/tensor/cuda_device.h"

namespace strait::tensor {
namespace {

[[noreturn]] void refuse(const std::string& why, const std::string& nearest) {
  ErrorPlace place;
  place.key = "runtime.device";
  throw UserError(fmt::format("runtime.device is \"cuda\", but {}; the nearest valid choice is {}",
                              why, nearest),
                  place);
}

}  // namespace

std::shared_ptr<Device> open_device(const std::string& kind, int64_t index) {
  if (kind != "cuda") return nullptr;
#if defined(STRAIT_CUDA)
  const CudaCount found = count_cuda_devices();
  if (found.devices == 0) refuse("no CUDA device was found (" + found.reason + ")", "\"cpu\"");
  if (index >= found.devices)
    refuse(fmt::format("rank {} of this computer wants a device of its own and there are {}", index,
                       found.devices),
           fmt::format("{} ranks per computer", found.devices));
  return make_cuda_device(index);
#else
  (void)index;
  refuse("this program was built without CUDA", "\"cpu\"");
#endif
}

int64_t num_cuda_devices() {
#if defined(STRAIT_CUDA)
  return count_cuda_devices().devices;
#else
  return 0;
#endif
}

}  // namespace strait::tensor
