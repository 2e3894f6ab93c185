// LibTorch's name of an element type.
#pragma once

#include <c10/core/ScalarType.h>

#include "strait/base/dtype.h"

namespace strait::tensor {

constexpr c10::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kByte:
      return c10::ScalarType::Byte;
    case Dtype::kInt32:
      return c10::ScalarType::Int;
    case Dtype::kInt64:
      return c10::ScalarType::Long;
    case Dtype::kFloat16:
      return c10::ScalarType::Half;
    case Dtype::kBfloat16:
      return c10::ScalarType::BFloat16;
    case Dtype::kFloat32:
      return c10::ScalarType::Float;
    case Dtype::kFloat64:
      return c10::ScalarType::Double;
  }
  return c10::ScalarType::Undefined;
}

}  // namespace strait::tensor
