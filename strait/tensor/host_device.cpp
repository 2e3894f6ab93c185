#include "strait/tensor/host_device.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "strait/base/errors.h"
#include "strait/tensor/scalar_type.h"

namespace strait::tensor {
namespace {

constexpr int64_t kPage = 4096;

class Ended final : public Mark {
 public:
  bool done() const override { return true; }
};

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

HostDevice::HostDevice(int64_t shadow) : shadow_(round_up(shadow, kPage)) {
  if (shadow_ == 0) return;
  const size_t size = static_cast<size_t>(2 * shadow_);
  void* space =
      ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED)
    throw NothingFits(fmt::format("the system refused {} bytes of address space", size));
  reserved_ = static_cast<char*>(space);
  if (::mprotect(reserved_ + shadow_, size / 2, PROT_READ | PROT_WRITE) != 0) {
    ::munmap(reserved_, size);
    throw NothingFits(fmt::format("the system refused {} bytes of memory", shadow_));
  }
}

HostDevice::~HostDevice() {
  if (reserved_) {
    ::munmap(reserved_, static_cast<size_t>(2 * shadow_));
    return;
  }
  for (const auto& [address, bytes] : held_) std::free(const_cast<char*>(address));
}

void* HostDevice::allocate(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t size = round_up(std::max<int64_t>(bytes, 1), 64);
  char* address = nullptr;
  if (!reserved_) {
    address = static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>(size)));
  } else {
    char* const end = held_.empty() ? reserved_
                                    : const_cast<char*>(held_.rbegin()->first) +
                                          round_up(held_.rbegin()->second, 64);
    if (end + size <= reserved_ + shadow_) address = end;
  }
  if (!address) throw NothingFits(fmt::format("out of memory: no {} bytes are left", bytes));
  held_[address] = bytes;
  return address;
}

void HostDevice::release(void* address) {
  const std::lock_guard lock(mutex_);
  if (held_.erase(static_cast<const char*>(address)) > 0 && !reserved_) std::free(address);
}

bool HostDevice::holds(const void* address) const {
  const std::lock_guard lock(mutex_);
  const char* const at = static_cast<const char*>(address);
  auto next = held_.upper_bound(at);
  if (next == held_.begin()) return false;
  --next;
  return at < next->first + std::max<int64_t>(next->second, 1);
}

void* HostDevice::real(const void* address) const {
  char* const at = static_cast<char*>(const_cast<void*>(address));
  const bool inside = reserved_ && at >= reserved_ && at < reserved_ + shadow_;
  return inside ? at + shadow_ : at;
}

at::Tensor HostDevice::view(const void* address, const std::vector<int64_t>& sizes,
                            Dtype dtype) const {
  return at::from_blob(real(address), sizes, at::TensorOptions().dtype(scalar_type(dtype)));
}

void HostDevice::copy(const void* from, void* to, int64_t bytes) {
  std::memcpy(real(to), real(from), static_cast<size_t>(bytes));
}

void HostDevice::fill_zero(void* address, int64_t bytes) {
  std::memset(real(address), 0, static_cast<size_t>(bytes));
}

void HostDevice::wide_product(const at::Tensor& left, const at::Tensor& right, at::Tensor& out,
                              bool accumulate) {
  const at::Tensor product = at::mm(left.to(at::kFloat), right.to(at::kFloat));
  if (accumulate)
    out.add_(product);
  else
    out.copy_(product);
}

std::shared_ptr<const Mark> HostDevice::mark() { return std::make_shared<Ended>(); }
std::unique_ptr<Queue> HostDevice::make_queue() { return std::make_unique<Queue>(); }
std::unique_ptr<Entered> HostDevice::enter(Queue&) { return std::make_unique<Entered>(); }

}  // namespace strait::tensor
