// The operations of the tensor blocks, in ATen operators on a device. Internal to model/.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "strait/model/block.h"
#include "strait/model/operations.h"
#include "strait/tensor/device.h"

namespace strait::model {

/// Element types of a tensor block: activations, and what sums and statistics are kept in.
struct TensorTypes {
  tensor::Device& device;
  Dtype narrow, wide;
  TensorTypes(tensor::Device& the_device, Dtype dtype)
      : device(the_device),
        narrow(dtype),
        wide(dtype_bytes(dtype) == 2 ? Dtype::kFloat32 : dtype) {}
  /// Activations `offset` elements of them behind `base`.
  at::Tensor at(const void* base, int64_t offset, const std::vector<int64_t>& sizes) const;
  /// Wide elements, `offset` counted in activations as the layouts of shape/ do.
  at::Tensor wide_at(const void* base, int64_t offset, const std::vector<int64_t>& sizes) const;
  at::Tensor widen(const at::Tensor& values) const;
  at::Tensor round(const at::Tensor& values) const;
  /// What operators can take: LibTorch's have no fp16 on the processor before 2.2, there it is
  /// widened.
  at::Tensor operable(const at::Tensor& values) const;
};

/// One parameter of a flat unit; an offset of -1 gives an undefined tensor.
struct TensorParameter {
  int64_t offset = -1;
  std::vector<int64_t> sizes;
  at::Tensor weight(const TensorTypes& types, const Call& call) const;
  /// In the unit's gradient, wide.
  at::Tensor gradient(const TensorTypes& types, const Call& call) const;
};
TensorParameter tensor_parameter(const UnitShape& unit, const std::string& name);

/// A linear layer or a norm.
struct TensorLayer {
  TensorParameter weight, bias;
  bool from_one = false;  // an RMSNorm that multiplies by 1 + weight
};
TensorLayer tensor_layer(const UnitShape& unit, const std::string& name);
TensorLayer tensor_norm(const UnitShape& unit, const std::string& name, const BlockStyle& style);

/// target (+)= value, rounded or widened to the target's type.
void put(at::Tensor target, const at::Tensor& value, bool accumulate);

/// Matrices: out = x W^T + bias.
void linear_into(const TensorTypes& types, const Call& call, const TensorLayer& layer,
                 const at::Tensor& x, at::Tensor out);
/// dx = dy W.
at::Tensor linear_input_gradient(const TensorTypes& types, const Call& call,
                                 const TensorLayer& layer, const at::Tensor& dy);
/// left right, narrow.
at::Tensor narrow_product(const TensorTypes& types, const at::Tensor& left,
                          const at::Tensor& right);
/// Adds or writes, as the call says, dW = dy^T x, summed up wide, and the column sums of dy.
void linear_weight_gradient(const TensorTypes& types, const Call& call, const TensorLayer& layer,
                            const at::Tensor& dy, const at::Tensor& x);
/// out (+)= left right, wide.
void wide_product(const TensorTypes& types, const at::Tensor& left, const at::Tensor& right,
                  at::Tensor out, bool accumulate);

/// LayerNorm, or RMSNorm when not centered.
struct TensorNorm {
  bool centered = true;
  double eps = 1e-5;
};
struct NormResult {
  at::Tensor out, mean, rstd;  // [rows, width]; [rows] wide, no mean for RMSNorm
};
NormResult norm_forward(const TensorTypes& types, const Call& call, const TensorNorm& norm,
                        const TensorLayer& layer, const at::Tensor& x);
/// `out` of norm_forward again, from its statistics.
at::Tensor norm_again(const TensorTypes& types, const Call& call, const TensorLayer& layer,
                      const NormResult& kept, const at::Tensor& x);
/// Of a norm's backward: its statistics, input, the gradient of its output, and whether gradients
/// of weight and bias are added.
struct NormSlope {
  const NormResult& kept;
  at::Tensor x, dy;
  bool accumulate = false;
};
/// Gradient of x; those of weight and bias go to the unit's gradient.
at::Tensor norm_backward(const TensorTypes& types, const Call& call, const TensorLayer& layer,
                         const NormSlope& slope);

/// Where rows stand in their documents, [B * T], int64; the batch has document_starts.
at::Tensor document_positions(const TensorTypes& types, const Batch& batch);

/// Factors (0 or 1 / (1 - rate)) of elements `elements` (int64, [sequences, ...]) of each
/// sequence's stream: those of kernel::DropoutMask, bit for bit. Wide. site.sequences lies in host
/// memory.
at::Tensor dropout_factors(const TensorTypes& types, const DropoutSite& site,
                           const at::Tensor& elements);
/// The same for [batch, tokens, width] as drop() counts elements; [batch * tokens, width].
at::Tensor dropout_factors(const TensorTypes& types, const DropoutSite& site, int64_t width);

}  // namespace strait::model
