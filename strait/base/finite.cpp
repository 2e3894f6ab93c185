#include "strait/base/finite.h"

#include <cstring>

namespace strait {
namespace {

/// All bits of the exponent are set in what is not finite.
template <class Bits>
std::optional<int64_t> first_with(Bits exponent, std::span<const std::byte> bytes) {
  const size_t count = bytes.size() / sizeof(Bits);
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(Bits), sizeof(Bits));
    if ((bits & exponent) == exponent) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> first_non_finite(Dtype dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case Dtype::kFloat16:
      return first_with<uint16_t>(0x7c00, bytes);
    case Dtype::kBfloat16:
      return first_with<uint16_t>(0x7f80, bytes);
    case Dtype::kFloat32:
      return first_with<uint32_t>(0x7f800000, bytes);
    case Dtype::kFloat64:
      return first_with<uint64_t>(0x7ff0000000000000, bytes);
    case Dtype::kByte:
    case Dtype::kInt32:
    case Dtype::kInt64:
      break;
  }
  return std::nullopt;
}

}  // namespace strait
