// bfloat16 as storage: the upper half of an IEEE float. Sums are never kept in it.
#pragma once

#include <bit>
#include <cstdint>

namespace strait {

/// Rounds to nearest, ties to even; NaN stays NaN (quiet). Uninitialised by default, like a float.
struct Bfloat16 {
  uint16_t bits;

  Bfloat16() = default;
  explicit constexpr Bfloat16(float value) : bits(round(std::bit_cast<uint32_t>(value))) {}
  explicit constexpr Bfloat16(double value) : Bfloat16(static_cast<float>(value)) {}
  constexpr operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }

 private:
  static constexpr uint16_t round(uint32_t word) {
    if ((word & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((word >> 16) | 0x40U);
    return static_cast<uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
  }
};
static_assert(sizeof(Bfloat16) == 2);

/// The type in which elements of T are computed, summed up and counted: fp32 for bf16, otherwise T.
template <class T>
struct WideType {
  using type = T;
};
template <>
struct WideType<Bfloat16> {
  using type = float;
};
template <class T>
using Wide = typename WideType<T>::type;

}  // namespace strait
