// Vectors of fp32 from and to the element types of buffers, and small floats in vectors.
#if defined(STRAIT_CODEC_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRAIT_CODEC_VECTOR_INL_H_
#undef STRAIT_CODEC_VECTOR_INL_H_
#else
#define STRAIT_CODEC_VECTOR_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "strait/codec/element.h"

HWY_BEFORE_NAMESPACE();
namespace strait::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

using Floats = hn::ScalableTag<float>;
using Signed = hn::RebindToSigned<Floats>;
using Unsigned = hn::RebindToUnsigned<Floats>;
using FloatVector = hn::Vec<Floats>;
using SignedVector = hn::Vec<Signed>;

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Floats()));

HWY_INLINE FloatVector load_floats(const float* x) { return hn::LoadU(Floats(), x); }
HWY_INLINE FloatVector load_floats(const uint16_t* x) {
  const hn::Rebind<uint16_t, Floats> narrow;
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Unsigned(), hn::LoadU(narrow, x))));
}
HWY_INLINE FloatVector load_floats(const double* x) {
  HWY_ALIGN float buffer[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) buffer[i] = static_cast<float>(x[i]);
  return hn::Load(Floats(), buffer);
}

/// |x| as bits, whose order is that of the numbers; infinities and NaN are kInfinityBits and above.
constexpr int32_t kInfinityBits = 0x7f800000;
HWY_INLINE SignedVector size_bits(FloatVector x) {
  return hn::And(hn::BitCast(Signed(), x), hn::Set(Signed(), 0x7fffffff));
}

/// bfloat16 in the low halves; as to_bfloat16.
HWY_INLINE SignedVector to_bfloat16_bits(FloatVector x) {
  const Signed d;
  const auto bits = hn::BitCast(Unsigned(), x);
  const auto size = hn::And(bits, hn::Set(Unsigned(), 0x7fffffffu));
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(Unsigned(), 1u));
  const auto rounded = hn::Add(hn::Add(size, hn::Set(Unsigned(), 0x7fffu)), odd);
  const auto kept = hn::Min(hn::BitCast(d, rounded), hn::Set(d, 0x7f7fffff));
  const auto sign = hn::And(bits, hn::Set(Unsigned(), 0x80000000u));
  return hn::BitCast(d, hn::ShiftRight<16>(hn::Or(hn::BitCast(Unsigned(), kept), sign)));
}

HWY_INLINE void store_bfloat16(SignedVector bits, uint16_t* out) {
  const hn::Rebind<uint16_t, Floats> narrow;
  hn::StoreU(hn::TruncateTo(narrow, hn::BitCast(Unsigned(), bits)), narrow, out);
}

/// Codes of 8-bit floats in 32-bit lanes; as to_fp8.
template <CodecKind kKind>
HWY_INLINE SignedVector to_fp8_codes(FloatVector x) {
  constexpr Fp8Form form = fp8_form(kKind);
  constexpr int kDropped = 23 - form.mantissa_bits;
  const Floats d;
  const Signed di;
  const auto size = hn::Min(hn::Abs(x), hn::Set(d, form.largest));
  const auto bits = hn::BitCast(di, size);
  const auto rounder = hn::Set(d, subnormal_rounder(form));
  const auto small = hn::Sub(hn::BitCast(di, hn::Add(size, rounder)), hn::BitCast(di, rounder));
  const auto odd = hn::And(hn::ShiftRight<kDropped>(bits), hn::Set(di, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(di, (1 << (kDropped - 1)) - 1)), odd);
  const auto normal = hn::Sub(hn::ShiftRight<kDropped>(rounded),
                              hn::Set(di, (127 - form.bias) << form.mantissa_bits));
  const auto is_small = hn::Lt(bits, hn::Set(di, (128 - form.bias) << 23));
  const auto sign = hn::ShiftRight<24>(hn::BitCast(Unsigned(), hn::Xor(x, hn::Abs(x))));
  return hn::Or(hn::IfThenElse(is_small, small, normal), hn::BitCast(di, sign));
}

/// As from_fp8.
template <CodecKind kKind>
HWY_INLINE FloatVector from_fp8_codes(const uint8_t* codes) {
  constexpr Fp8Form form = fp8_form(kKind);
  const Floats d;
  const Signed di;
  const hn::Rebind<uint8_t, Floats> narrow;
  const auto code = hn::PromoteTo(di, hn::LoadU(narrow, codes));
  const auto low = hn::And(code, hn::Set(di, 0x7f));
  const auto unit = hn::Set(d, smallest_normal(form) / static_cast<float>(1 << form.mantissa_bits));
  const auto small = hn::Mul(hn::ConvertTo(d, low), unit);
  const auto normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<23 - form.mantissa_bits>(low),
                                             hn::Set(di, (127 - form.bias) << 23)));
  const auto is_small = hn::Lt(low, hn::Set(di, 1 << form.mantissa_bits));
  const auto sign = hn::ShiftLeft<24>(hn::Sub(code, low));
  const auto size = hn::BitCast(di, hn::IfThenElse(hn::RebindMask(d, is_small), small, normal));
  return hn::BitCast(d, hn::Or(size, sign));
}

/// Codes of e3m0 in 32-bit lanes; as to_e3m0.
HWY_INLINE SignedVector to_e3m0_codes(FloatVector x, float scale) {
  const Signed d;
  const auto distance = hn::Sub(size_bits(x), hn::Set(d, e3m0_border_bits(scale)));
  const auto power = hn::Max(hn::Add(hn::ShiftRight<23>(distance), hn::Set(d, 7)), hn::Zero(d));
  const auto sign = hn::ShiftLeft<3>(hn::ShiftRight<31>(hn::BitCast(Unsigned(), x)));
  return hn::Or(power, hn::BitCast(d, sign));
}

/// Of codes 0 to 15; as from_e3m0.
HWY_INLINE FloatVector from_e3m0_codes(SignedVector codes) {
  const Signed d;
  const auto power = hn::And(codes, hn::Set(d, 7));
  const auto bits = hn::ShiftLeft<23>(hn::Add(power, hn::Set(d, 120)));
  const auto size = hn::IfThenZeroElse(hn::Eq(power, hn::Zero(d)), bits);
  return hn::BitCast(Floats(), hn::Or(size, hn::ShiftLeft<28>(hn::Sub(codes, power))));
}

#endif  // HWY_SCALAR

}  // namespace strait::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
