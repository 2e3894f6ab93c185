// Loads and stores of vectors that may be cut off at the end of a row. Every element passes through
// the same vector operations wherever a row is cut, so results do not depend on how work is split.
#if defined(STRAIT_KERNEL_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRAIT_KERNEL_VECTOR_INL_H_
#undef STRAIT_KERNEL_VECTOR_INL_H_
#else
#define STRAIT_KERNEL_VECTOR_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "strait/base/bfloat16.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
constexpr int64_t lanes_of(D d) {
  return static_cast<int64_t>(hn::MaxLanes(d));
}

/// A vector of fp32 from bf16 elements, and back (to nearest, ties to even; NaN stays NaN).
template <class D>
HWY_ATTR inline hn::Vec<D> load_wide(D d, const uint16_t* from) {
  const hn::Rebind<uint16_t, D> half;
  const hn::RebindToUnsigned<D> word;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(word, hn::LoadU(half, from))));
}
/// Bits of fp32 whose upper halves are bf16, rounded; not of NaN.
template <class D>
HWY_ATTR inline hn::Vec<D> round_bits(D word, hn::Vec<D> bits) {
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(word, 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(word, 0x7fff)));
}
/// The upper halves of bits.
template <class D>
HWY_ATTR inline void store_upper(D, hn::Vec<D> bits, uint16_t* to) {
  const hn::Rebind<uint16_t, D> half;
  const hn::RebindToSigned<D> number;
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(number, hn::ShiftRight<16>(bits))), half, to);
}
template <class D>
HWY_ATTR inline void store_narrow(D d, hn::Vec<D> value, uint16_t* to) {
  const hn::RebindToUnsigned<D> word;
  const auto bits = hn::BitCast(word, value);
  const auto nan = hn::MaskFromVec(hn::BitCast(word, hn::VecFromMask(d, hn::IsNaN(value))));
  const auto quiet = hn::Or(bits, hn::Set(word, 0x400000));
  store_upper(word, hn::IfThenElse(nan, quiet, round_bits(word, bits)), to);
}

/// Fewer elements than lanes. Apart, so that loops have the whole vectors alone.
template <class D, class T>
HWY_ATTR HWY_NOINLINE hn::Vec<D> load_rest(D d, const T* from, int64_t count) {
  HWY_ALIGN T buffer[hn::MaxLanes(d)] = {};
  std::copy_n(from, count, buffer);
  return hn::Load(d, buffer);
}
template <class D>
HWY_ATTR HWY_NOINLINE hn::Vec<D> load_rest(D d, const Bfloat16* from, int64_t count) {
  uint16_t buffer[hn::MaxLanes(d)] = {};
  std::copy_n(reinterpret_cast<const uint16_t*>(from), count, buffer);
  return load_wide(d, buffer);
}
template <class D, class T>
HWY_ATTR HWY_NOINLINE void store_rest(D d, hn::Vec<D> value, T* to, int64_t count) {
  HWY_ALIGN T buffer[hn::MaxLanes(d)];
  hn::Store(value, d, buffer);
  std::copy_n(buffer, count, to);
}
template <class D>
HWY_ATTR HWY_NOINLINE void store_rest(D d, hn::Vec<D> value, Bfloat16* to, int64_t count) {
  uint16_t buffer[hn::MaxLanes(d)];
  store_narrow(d, value, buffer);
  std::copy_n(buffer, count, reinterpret_cast<uint16_t*>(to));
}

/// min(count, lanes) elements; the rest is 0.
template <class D, class T>
HWY_ATTR HWY_INLINE hn::Vec<D> load_part(D d, const T* from, int64_t count) {
  if (count < lanes_of(d)) return load_rest(d, from, count);
  return hn::LoadU(d, from);
}
template <class D>
HWY_ATTR HWY_INLINE hn::Vec<D> load_part(D d, const Bfloat16* from, int64_t count) {
  if (count < lanes_of(d)) return load_rest(d, from, count);
  return load_wide(d, reinterpret_cast<const uint16_t*>(from));
}

template <class D, class T>
HWY_ATTR HWY_INLINE void store_part(D d, hn::Vec<D> value, T* to, int64_t count) {
  if (count < lanes_of(d)) return store_rest(d, value, to, count);
  hn::StoreU(value, d, to);
}
template <class D>
HWY_ATTR HWY_INLINE void store_part(D d, hn::Vec<D> value, Bfloat16* to, int64_t count) {
  if (count < lanes_of(d)) return store_rest(d, value, to, count);
  store_narrow(d, value, reinterpret_cast<uint16_t*>(to));
}

/// All lanes below `count` keep their value, the others become `other`.
template <class D, class T>
HWY_ATTR inline hn::Vec<D> keep_first(D d, hn::Vec<D> value, int64_t count, T other) {
  if (count >= lanes_of(d)) return value;
  return hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(count)), value, hn::Set(d, other));
}

template <class D>
HWY_ATTR inline hn::TFromD<D> sum_of(D d, hn::Vec<D> value) {
  return hn::GetLane(hn::SumOfLanes(d, value));
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
