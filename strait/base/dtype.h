// Element types of values, parameters and messages.
#pragma once

#include <cstdint>
#include <string>

namespace strait {

enum class Dtype : uint8_t { kByte, kInt32, kInt64, kFloat16, kBfloat16, kFloat32, kFloat64 };

/// Size of one element in bytes.
constexpr int64_t dtype_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kByte:
      return 1;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      return 2;
    case Dtype::kInt32:
    case Dtype::kFloat32:
      return 4;
    case Dtype::kInt64:
    case Dtype::kFloat64:
      return 8;
  }
  return 0;
}

/// "u8" "i32" "i64" "fp16" "bf16" "fp32" "fp64".
constexpr const char* dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kByte:
      return "u8";
    case Dtype::kInt32:
      return "i32";
    case Dtype::kInt64:
      return "i64";
    case Dtype::kFloat16:
      return "fp16";
    case Dtype::kBfloat16:
      return "bf16";
    case Dtype::kFloat32:
      return "fp32";
    case Dtype::kFloat64:
      return "fp64";
  }
  return "?";
}

}  // namespace strait
