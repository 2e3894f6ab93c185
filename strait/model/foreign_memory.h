// LibTorch's tensors on the buffers of a call, for blocks that LibTorch computes.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "strait/base/dtype.h"
#include "strait/model/block.h"
#include "strait/tensor/scalar_type.h"

namespace strait::model {

/// Gradients of weights and sums over ranks are fp32 beside bf16.
constexpr Dtype wide_dtype(Dtype dtype) {
  return dtype == Dtype::kBfloat16 ? Dtype::kFloat32 : dtype;
}

/// A view of foreign memory; LibTorch only reads what the block hands in as const.
inline at::Tensor view(const void* data, at::IntArrayRef sizes, Dtype dtype) {
  return at::from_blob(const_cast<void*>(data), sizes,
                       at::TensorOptions().dtype(tensor::scalar_type(dtype)));
}

inline void* at_element(void* data, int64_t offset, Dtype dtype) {
  return static_cast<char*>(data) + offset * dtype_bytes(dtype);
}

/// The parameters of a unit, in its order.
inline std::vector<at::Tensor> parameter_views(const UnitShape& unit, const void* weights,
                                               Dtype dtype) {
  std::vector<at::Tensor> list;
  for (const ParameterShape& parameter : unit.parameters)
    list.push_back(view(at_element(const_cast<void*>(weights), parameter.offset, dtype),
                        parameter.dims, dtype));
  return list;
}

/// Writes or adds the gradient of a parameter to that of the unit; an undefined one is zero.
inline void put_gradient(const Call& call, const ParameterShape& parameter,
                         const at::Tensor& gradient, Dtype dtype) {
  const Dtype wide = wide_dtype(dtype);
  const at::Tensor target =
      view(at_element(call.gradient, parameter.offset, wide), parameter.dims, wide);
  if (!call.accumulate) target.zero_();
  if (gradient.defined()) target.add_(gradient);
}

/// Of LibTorch, for the calling thread. Asked first: set_num_threads makes a pool of spinning
/// threads each time.
inline void use_threads(int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

}  // namespace strait::model
