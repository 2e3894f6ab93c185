// Compiled only with a LibTorch that has CUDA: see strait/CMakeLists.txt.
#include "strait/tensor/cuda_device.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <mutex>

#include "strait/base/errors.h"
#include "strait/tensor/scalar_type.h"

namespace strait::tensor {
namespace {

/// Host memory is copied through pinned memory up to this size, so that the copy waits for nothing.
constexpr int64_t kPinnedBytes = int64_t{1} << 20;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw InputOutputError(fmt::format("CUDA: {}: {}", what, cudaGetErrorString(status)));
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw InternalError(fmt::format("cuBLAS: {}: {}", what, cublasGetStatusString(status)));
}

class CudaMark final : public Mark {
 public:
  explicit CudaMark(const c10::cuda::CUDAStream& stream) { event_.record(stream); }
  bool done() const override { return event_.query(); }

 private:
  at::cuda::CUDAEvent event_;
};

class CudaQueue final : public Queue {
 public:
  explicit CudaQueue(c10::DeviceIndex index) : stream(c10::cuda::getStreamFromPool(false, index)) {}
  const c10::cuda::CUDAStream stream;
};

class CudaEntered final : public Entered {
 public:
  explicit CudaEntered(const CudaQueue& queue) : guard_(queue.stream) {}

 private:
  c10::cuda::CUDAStreamGuard guard_;
};

/// A row-major matrix as cuBLAS, which thinks in columns, sees it: transposed.
struct ColumnMatrix {
  explicit ColumnMatrix(const at::Tensor& matrix) {
    const bool rows = matrix.stride(1) == 1;
    ensure(rows || matrix.stride(0) == 1, "wide_product: a factor is not a plain matrix");
    operation = rows ? CUBLAS_OP_N : CUBLAS_OP_T;
    // Of a single row or column the other stride may be anything, but cuBLAS wants it long enough.
    const int64_t least = rows ? matrix.size(1) : matrix.size(0);
    leading = static_cast<int>(std::max(least, matrix.stride(rows ? 0 : 1)));
  }
  cublasOperation_t operation;
  int leading;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int64_t index) : index_(static_cast<c10::DeviceIndex>(index)) {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  }
  ~CudaDevice() override {
    const c10::cuda::CUDAGuard here(index_);
    for (const auto& [address, bytes] : held_) cudaFree(const_cast<char*>(address));
  }

  std::string name() const override {
    return fmt::format("cuda:{} ({})", static_cast<int>(index_),
                       at::cuda::getDeviceProperties(index_)->name);
  }

  void* allocate(int64_t bytes) override {
    const c10::cuda::CUDAGuard here(index_);
    void* address = nullptr;
    const size_t size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    if (cudaMalloc(&address, size) != cudaSuccess) {
      (void)cudaGetLastError();
      c10::cuda::CUDACachingAllocator::emptyCache();
      if (cudaMalloc(&address, size) != cudaSuccess) refuse(bytes);
    }
    const std::lock_guard lock(mutex_);
    held_[static_cast<const char*>(address)] = bytes;
    return address;
  }

  void release(void* address) override {
    {
      const std::lock_guard lock(mutex_);
      if (held_.erase(static_cast<const char*>(address)) == 0) return;
    }
    const c10::cuda::CUDAGuard here(index_);
    cudaFree(address);  // waits for the device
  }

  bool holds(const void* address) const override {
    const char* const at = static_cast<const char*>(address);
    const std::lock_guard lock(mutex_);
    auto next = held_.upper_bound(at);
    if (next == held_.begin()) return false;
    --next;
    return at < next->first + std::max<int64_t>(next->second, 1);
  }

  at::Tensor view(const void* address, const std::vector<int64_t>& sizes,
                  Dtype dtype) const override {
    const auto options =
        at::TensorOptions().dtype(scalar_type(dtype)).device(at::Device(at::kCUDA, index_));
    bool empty = false;
    for (const int64_t size : sizes) empty = empty || size == 0;
    if (empty) return at::empty(sizes, options);
    // The device is given, so that LibTorch need not ask the driver where the address lies.
    return at::for_blob(const_cast<void*>(address), sizes)
        .options(options)
        .target_device(options.device())
        .make_tensor();
  }

  void copy(const void* from, void* to, int64_t bytes) override {
    const c10::cuda::CUDAGuard here(index_);
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(index_);
    if (!holds(from) && holds(to) && bytes <= kPinnedBytes) return copy_pinned(from, to, bytes);
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
          "copying");
    if (!holds(to) || !holds(from)) stream.synchronize();
  }

  void fill_zero(void* address, int64_t bytes) override {
    const c10::cuda::CUDAGuard here(index_);
    check(cudaMemsetAsync(address, 0, static_cast<size_t>(bytes),
                          c10::cuda::getCurrentCUDAStream(index_)),
          "filling with zeros");
  }

  void wide_product(const at::Tensor& left, const at::Tensor& right, at::Tensor& out,
                    bool accumulate) override {
    ensure(out.is_contiguous(), "wide_product: the result is not dense");
    if (out.numel() == 0) return;
    const ColumnMatrix a(right), b(left);
    const cudaDataType_t narrow = left.scalar_type() == at::kHalf ? CUDA_R_16F : CUDA_R_16BF;
    const float one = 1.0f, before = accumulate ? 1.0f : 0.0f;
    const auto number = [](int64_t value) { return static_cast<int>(value); };
    check(cublasGemmEx(at::cuda::getCurrentCUDABlasHandle(), a.operation, b.operation,
                       number(out.size(1)), number(out.size(0)), number(left.size(1)), &one,
                       right.data_ptr(), narrow, a.leading, left.data_ptr(), narrow, b.leading,
                       &before, out.data_ptr(), CUDA_R_32F, number(out.size(1)), CUBLAS_COMPUTE_32F,
                       CUBLAS_GEMM_DEFAULT),
          "a product of 16-bit numbers into fp32");
  }

  int64_t logits_bytes() const override { return int64_t{1} << 30; }

  std::shared_ptr<const Mark> mark() override {
    const c10::cuda::CUDAGuard here(index_);
    return std::make_shared<CudaMark>(c10::cuda::getCurrentCUDAStream(index_));
  }
  std::unique_ptr<Queue> make_queue() override { return std::make_unique<CudaQueue>(index_); }
  std::unique_ptr<Entered> enter(Queue& queue) override {
    return std::make_unique<CudaEntered>(static_cast<CudaQueue&>(queue));
  }

 private:
  [[noreturn]] void refuse(int64_t bytes) const {
    (void)cudaGetLastError();
    size_t left = 0, all = 0;
    (void)cudaMemGetInfo(&left, &all);
    throw NothingFits(fmt::format("out of memory on {}: {} bytes wanted, {} of {} left", name(),
                                  bytes, left, all));
  }

  /// LibTorch keeps the pinned memory until the copy has been made.
  void copy_pinned(const void* from, void* to, int64_t bytes) const {
    const at::Tensor pinned =
        at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    std::memcpy(pinned.data_ptr(), from, static_cast<size_t>(bytes));
    view(to, {bytes}, Dtype::kByte).copy_(pinned, true);
  }

  const c10::DeviceIndex index_;
  mutable std::mutex mutex_;
  std::map<const char*, int64_t> held_;  // bytes by address
};

}  // namespace

CudaCount count_cuda_devices() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess) return {devices, devices == 0 ? "the driver has none" : ""};
  (void)cudaGetLastError();
  return {0, cudaGetErrorString(status)};
}

std::shared_ptr<Device> make_cuda_device(int64_t index) {
  return std::make_shared<CudaDevice>(index);
}

}  // namespace strait::tensor
