// A device that is the processor: what runs on a GPU runs here too, in the same ATen operators.
#pragma once

#include <map>
#include <mutex>

#include "strait/tensor/device.h"

namespace strait::tensor {

/// All work has ended when a call returns. Addresses lie `shadow` bytes below the memory that they
/// stand for: with a shadow no address can be read or written but through the device, so that a
/// test sees whatever takes them for plain memory. `shadow` reserves that much address space and is
/// the limit of what allocate gives, rounded up to pages; freed space is used again only when it
/// lies at the end.
class HostDevice : public Device {
 public:
  explicit HostDevice(int64_t shadow = 0);
  ~HostDevice() override;
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  std::string name() const override { return "cpu"; }
  void* allocate(int64_t bytes) override;
  void release(void* address) override;
  bool holds(const void* address) const override;
  at::Tensor view(const void* address, const std::vector<int64_t>& sizes,
                  Dtype dtype) const override;
  void copy(const void* from, void* to, int64_t bytes) override;
  void fill_zero(void* address, int64_t bytes) override;
  void wide_product(const at::Tensor& left, const at::Tensor& right, at::Tensor& out,
                    bool accumulate) override;
  int64_t logits_bytes() const override {
    return int64_t{1} << 12;
  }  // several chunks even in tests
  std::shared_ptr<const Mark> mark() override;
  std::unique_ptr<Queue> make_queue() override;
  std::unique_ptr<Entered> enter(Queue& queue) override;

  /// Where the bytes of an address are; other memory is where it says.
  void* real(const void* address) const;

 private:
  int64_t shadow_;
  char* reserved_ = nullptr;  // [shadow_] without access, then [shadow_] with
  mutable std::mutex mutex_;
  std::map<const char*, int64_t> held_;  // bytes by address
};

}  // namespace strait::tensor
