// fp32 by matrix tiles. A number is the sum of three bf16 numbers: the nearest one, the first 8
// bits of what is left, and the last 8. Of the nine products of two numbers' parts six are added
// up; the other three are less than 2^-24 of the whole, what rounding a product to fp32 may lose.
// Included once per target by foreach_target.h.
//
// Both operands are packed: units of 16 rows of A or columns of B x 32 depths in three tiles, one
// behind the other, which stand for the high, middle and low parts.
#if defined(STRAIT_KERNEL_GEMM_SPLIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRAIT_KERNEL_GEMM_SPLIT_INL_H_
#undef STRAIT_KERNEL_GEMM_SPLIT_INL_H_
#else
#define STRAIT_KERNEL_GEMM_SPLIT_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "strait/kernel/gemm_matrix-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kSplitWords = kNumParts<float> * kTileWords;  // of a unit

/// A vector's parts: the upper halves are bf16, the lower ones 0.
struct Parts {
  hn::Vec<hn::ScalableTag<uint32_t>> high, middle, low;
};
/// high + middle + low = value, but for what is less than bf16 can tell: parts below 2^-133, and
/// below 2^-126 tiles take them for 0. What is not finite in bf16 makes products NaN: infinities,
/// NaN and numbers from 2^128 - 2^119 on.
HWY_ATTR inline Parts split(hn::Vec<hn::ScalableTag<float>> value) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<uint32_t> word;
  const auto upper = hn::Set(word, 0xffff0000U);
  const auto high = hn::And(round_bits(word, hn::BitCast(word, value)), upper);
  const auto rest = hn::Sub(value, hn::BitCast(d, high));
  const auto middle = hn::And(hn::BitCast(word, rest), upper);
  const auto low = hn::BitCast(word, hn::Sub(rest, hn::BitCast(d, middle)));
  return {high, middle, hn::And(low, upper)};
}

/// Depths that are neighbours: [entry][depth].
HWY_ATTR inline void split_rows(const MatrixView<float>& in, int64_t entries, int64_t depths,
                                uint32_t* out) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<uint32_t> word;
  auto* const halves = reinterpret_cast<uint16_t*>(out);
  constexpr int64_t kTile = 2 * kTileWords;
  for (int64_t entry = 0; entry < entries; ++entry) {
    const float* row = in.data + entry * in.row_stride;
    for (int64_t k = 0; k < kMatrixDepth; k += lanes_of(d)) {
      const auto parts = split(load_part(d, row + k, std::max<int64_t>(0, depths - k)));
      uint16_t* const to = halves + entry * kMatrixDepth + k;
      store_upper(word, parts.high, to);
      store_upper(word, parts.middle, to + kTile);
      store_upper(word, parts.low, to + 2 * kTile);
    }
  }
  for (int64_t part = 0; part < kNumParts<float>; ++part) {
    uint32_t* const tile = out + part * kTileWords;
    std::fill(tile + entries * kUnit, tile + kTileWords, 0U);
  }
}

/// Entries that are neighbours: [pair of depths][entry].
HWY_ATTR inline void split_pairs(const MatrixView<float>& in, int64_t entries, int64_t depths,
                                 uint32_t* out) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<uint32_t> word;
  for (int64_t k = 0; k < kMatrixDepth; k += 2, out += kUnit) {
    const float* even = in.data + k * in.column_stride;
    for (int64_t entry = 0; entry < kUnit; entry += lanes_of(d)) {
      const auto load = [&](int64_t depth) HWY_ATTR {
        const int64_t count = depth < depths ? std::max<int64_t>(0, entries - entry) : 0;
        return split(load_part(d, even + (depth - k) * in.column_stride + entry, count));
      };
      const auto below = load(k), above = load(k + 1);
      const auto join = [&](hn::Vec<decltype(word)> first, hn::Vec<decltype(word)> second,
                            int64_t part) HWY_ATTR {
        hn::StoreU(hn::Or(hn::ShiftRight<16>(first), second), word,
                   out + part * kTileWords + entry);
      };
      join(below.high, above.high, 0);
      join(below.middle, above.middle, 1);
      join(below.low, above.low, 2);
    }
  }
}

/// A unit as `kPairs` wants it: [pair of depths][entry], or [entry][depth].
template <bool kPairs>
HWY_ATTR inline void split_unit(const MatrixView<float>& in, int64_t entries, int64_t depths,
                                uint32_t* out) {
  const bool neighbours = in.column_stride != 1;  // the entries
  alignas(64) uint32_t turned[kSplitWords];
  uint32_t* const first = neighbours == kPairs ? out : turned;
  if (neighbours) {
    split_pairs(in, entries, depths, first);
  } else {
    split_rows(in, entries, depths, first);
  }
  if (first == out) return;
  for (int64_t at = 0; at < kSplitWords; at += kTileWords)
    transpose_unit(turned + at, kTileUnitBytes, out + at);
}

/// Units of all depths one behind the other, 16 entries after 16 entries. What lies side by side in
/// memory is read together.
template <bool kPairs>
HWY_ATTR inline void split_panels(const MatrixView<float>& in, int64_t entries, int64_t depth,
                                  uint32_t* out) {
  const int64_t panel = whole_units(depth, kMatrixDepth) / kMatrixDepth * kSplitWords;
  const auto unit = [&](int64_t entry, int64_t k) HWY_ATTR {
    const float* const from = in.data + entry * in.row_stride + k * in.column_stride;
    split_unit<kPairs>({from, in.row_stride, in.column_stride}, std::min(kUnit, entries - entry),
                       std::min(kMatrixDepth, depth - k),
                       out + entry / kUnit * panel + k / kMatrixDepth * kSplitWords);
  };
  if (in.column_stride == 1) {
    for (int64_t entry = 0; entry < entries; entry += kUnit)
      for (int64_t k = 0; k < depth; k += kMatrixDepth) unit(entry, k);
  } else {
    for (int64_t k = 0; k < depth; k += kMatrixDepth)
      for (int64_t entry = 0; entry < entries; entry += kUnit) unit(entry, k);
  }
}

HWY_ATTR inline void prepare_rows(const MatrixGroup<float>& group) {
  split_panels<false>(group.in, group.rows, group.depth, group.packed);
}
HWY_ATTR inline MatrixRows rows_of(const MatrixGroup<float>& group, int64_t row) {
  constexpr int64_t kUnitBytes = kSplitWords * 4;
  const int64_t panel = whole_units(group.depth, kMatrixDepth) / kMatrixDepth * kUnitBytes;
  const auto* const units = reinterpret_cast<const uint8_t*>(group.packed);
  return {units + row / kUnit * panel, kTileUnitBytes, kUnitBytes, panel};
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
