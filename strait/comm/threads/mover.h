// Copies and sums of one member's end of a communicator, on plain memory or on the device that the
// ranks share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/tensor/device.h"

namespace strait::comm {

/// One thread at a time. On a device work goes into the member's own queue, between begin() and the
/// end of what begin() gave, and has ended only after settle().
class Mover {
 public:
  /// `repeats`, for tests: how often a copy is made, 0 = dropped; null: once.
  explicit Mover(tensor::Device* device, std::function<int64_t()> repeats = {})
      : device_(device),
        queue_(device ? device->make_queue() : nullptr),
        repeats_(std::move(repeats)) {}
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  bool on_device(const void* address) const { return device_ && device_->holds(address); }
  /// The calling thread's work so far, when `source` or `destination` is of the device; otherwise
  /// null.
  std::shared_ptr<const tensor::Mark> mark(const void* source, const void* destination) const;
  std::unique_ptr<tensor::Entered> begin() {
    return device_ ? device_->enter(*queue_) : std::unique_ptr<tensor::Entered>();
  }
  /// As comm::copy_bytes and comm::sum_in_order; all addresses are of one kind of memory. Bytes
  /// that were read of every source: what the ledger learns.
  int64_t copy(const void* source, void* destination, int64_t bytes) const;
  int64_t sum(Dtype dtype, const std::vector<const void*>& sources, void* destination,
              int64_t elements, bool accumulate) const;
  /// Waits for the work of this thread's queue when `address` is of the device.
  void settle(const void* address) const;
  /// Memory of the member's own, of the same kind as `like`; valid until the next call.
  char* scratch(int64_t bytes, const void* like);

 private:
  tensor::Device* device_;
  std::unique_ptr<tensor::Queue> queue_;
  std::function<int64_t()> repeats_;
  std::vector<char> plain_;
  void* buffer_ = nullptr;  // of the device
  int64_t buffer_bytes_ = 0;
};

}  // namespace strait::comm
