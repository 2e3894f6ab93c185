#include "strait/tensor/device.h"

#include <cstring>

#include "strait/tensor/tensor_sum.h"

namespace strait::tensor {

void copy_bytes(Device* device, const void* from, void* to, int64_t bytes) {
  if (bytes <= 0 || from == to) return;
  if (device)
    device->copy(from, to, bytes);
  else
    std::memcpy(to, from, static_cast<size_t>(bytes));
}

void fill_zero(Device* device, void* address, int64_t bytes) {
  if (bytes <= 0) return;
  if (device)
    device->fill_zero(address, bytes);
  else
    std::memset(address, 0, static_cast<size_t>(bytes));
}

void sum_in_order(Device& device, const OrderedSum& sum) { sum_tensors(device, sum); }

}  // namespace strait::tensor
