// Where the values of a rank live when that is not plain memory that our own kernels work on: a
// GPU, or in tests a stand-in for one. Everything else knows such memory by its addresses alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strait/base/dtype.h"

namespace at {
class Tensor;
}

namespace strait::tensor {

/// A point in the work that a thread has handed to a device.
class Mark {
 public:
  virtual ~Mark() = default;
  /// True when all work before the mark has ended. Throws InternalError when the device failed.
  virtual bool done() const = 0;
};

/// An order of work of its own on a device (a stream).
class Queue {
 public:
  virtual ~Queue() = default;
};

/// While it lives, the work of its thread goes into the queue that it was made for.
class Entered {
 public:
  virtual ~Entered() = default;
};

/// Thread-safe. Work is handed over by the calling thread, in the order of its queue, and may still
/// run when a call returns; host memory that a call names is free again then.
class Device {
 public:
  virtual ~Device() = default;
  /// "cuda:0 (NVIDIA H100 80GB HBM3)".
  virtual std::string name() const = 0;
  /// At least 64-byte aligned, contents undefined. InputOutputError when there is none left.
  virtual void* allocate(int64_t bytes) = 0;
  /// Of an address that allocate gave; no work on it may be under way. Never throws.
  virtual void release(void* address) = 0;
  /// True for addresses inside what allocate gave and release did not take back.
  virtual bool holds(const void* address) const = 0;
  /// The elements at `address` of this device, dense and row-major; the tensor does not own them.
  virtual at::Tensor view(const void* address, const std::vector<int64_t>& sizes,
                          Dtype dtype) const = 0;
  /// Either side may be host memory; a copy to the host has ended when this returns. No overlap.
  virtual void copy(const void* from, void* to, int64_t bytes) = 0;
  virtual void fill_zero(void* address, int64_t bytes) = 0;
  /// out (+)= left right, of matrices of bf16 and a dense fp32 `out`, summed up in fp32. Either
  /// factor may be a transposed view.
  virtual void wide_product(const at::Tensor& left, const at::Tensor& right, at::Tensor& out,
                            bool accumulate) = 0;
  /// How much logits a head may hold at a time, bytes.
  virtual int64_t logits_bytes() const = 0;
  virtual std::shared_ptr<const Mark> mark() = 0;
  virtual std::unique_ptr<Queue> make_queue() = 0;
  virtual std::unique_ptr<Entered> enter(Queue& queue) = 0;
};

/// The same on memory that may be plain: `device` null. Pools and states use these.
void copy_bytes(Device* device, const void* from, void* to, int64_t bytes);
void fill_zero(Device* device, void* address, int64_t bytes);

/// destination[i] = ((sources[0][i] + sources[1][i]) + ...), or that added to destination[i]; as
/// comm::sum_in_order states it, on addresses of `device`. UserError for types without sums.
struct OrderedSum {
  Dtype dtype = Dtype::kFloat32;
  std::vector<const void*> sources;
  void* destination = nullptr;
  int64_t elements = 0;
  bool accumulate = false;
};
void sum_in_order(Device& device, const OrderedSum& sum);

}  // namespace strait::tensor
