#include "strait/comm/threads/mover.h"

#include <thread>

#include "strait/comm/sums.h"

namespace strait::comm {

Mover::~Mover() {
  if (buffer_) device_->release(buffer_);
}

std::shared_ptr<const tensor::Mark> Mover::mark(const void* source, const void* destination) const {
  if (!on_device(source) && !on_device(destination)) return nullptr;
  return device_->mark();
}

int64_t Mover::copy(const void* source, void* destination, int64_t bytes) const {
  const int64_t times = repeats_ ? repeats_() : 1;
  for (int64_t time = 0; time < times; ++time) {
    if (on_device(destination))
      tensor::copy_bytes(device_, source, destination, bytes);
    else
      copy_bytes(source, destination, bytes);
  }
  return times * bytes;
}

int64_t Mover::sum(Dtype dtype, const std::vector<const void*>& sources, void* destination,
                   int64_t elements, bool accumulate) const {
  if (on_device(destination))
    tensor::sum_in_order(*device_, {dtype, sources, destination, elements, accumulate});
  else
    sum_in_order(dtype, sources, destination, elements, accumulate);
  return elements * dtype_bytes(dtype);
}

void Mover::settle(const void* address) const {
  if (!on_device(address)) return;
  const auto reached = device_->mark();
  while (!reached->done()) std::this_thread::yield();
}

char* Mover::scratch(int64_t bytes, const void* like) {
  if (!on_device(like)) {
    if (static_cast<int64_t>(plain_.size()) < bytes) plain_.resize(static_cast<size_t>(bytes));
    return plain_.data();
  }
  if (buffer_bytes_ < bytes) {
    if (buffer_) device_->release(buffer_);
    buffer_ = nullptr;
    buffer_ = device_->allocate(bytes);
    buffer_bytes_ = bytes;
  }
  return static_cast<char*>(buffer_);
}

}  // namespace strait::comm
