// The element type that train.precision names.
#pragma once

#include <string>

#include "strait/base/dtype.h"

namespace strait {

/// Of weights and activations as they are computed. Precondition: a valid precision.
inline Dtype dtype_of(const std::string& precision) {
  if (precision == "bf16") return Dtype::kBfloat16;
  if (precision == "fp16") return Dtype::kFloat16;
  return precision == "fp64" ? Dtype::kFloat64 : Dtype::kFloat32;
}

}  // namespace strait
