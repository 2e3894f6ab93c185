// Products of tiles whose factors meet several others, and are packed once for all of them.
// Included once per target by foreach_target.h.
#if defined(STRAIT_KERNEL_ATTENTION_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRAIT_KERNEL_ATTENTION_PANELS_INL_H_
#undef STRAIT_KERNEL_ATTENTION_PANELS_INL_H_
#else
#define STRAIT_KERNEL_ATTENTION_PANELS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "strait/kernel/gemm_block-inl.h"
#include "strait/kernel/gemm_scratch.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

constexpr int64_t kTile = 64;      // queries and keys per tile
constexpr int64_t kTileGroup = 4;  // tiles of queries that meet a tile of keys while it is packed

/// What a thread that attends keeps: packed tiles, and sums that bf16 cannot keep in place.
template <class W>
struct AttentionPanels {
  W *rows, *matrix;                   // of the product that runs: Panels
  W *keys, *values, *keys_by_column;  // as second factors of scores, results, query gradients
  W* queries;                         // kTileGroup tiles
  W* sums;                            // likewise
  int64_t tile;                       // elements from one of these to the next
};
template <class W>
HWY_ATTR inline AttentionPanels<W> attention_panels(int64_t width) {
  const int64_t deepest = std::max(width, kTile) + kMatrixDepth;
  const int64_t tile = (kTile + kMatrixRows) * deepest + kPackSlack;
  constexpr int64_t kSingle = 5;
  W* const memory = static_cast<W*>(thread_scratch(
      ScratchUse::kAttention, (kSingle + 2 * kTileGroup) * tile * static_cast<int64_t>(sizeof(W))));
  const auto at = [&](int64_t number) { return memory + number * tile; };
  return {at(0), at(1), at(2), at(3), at(4), at(kSingle), at(kSingle + kTileGroup), tile};
}

/// Columns as the second factor.
template <class Way, class T>
HWY_ATTR void pack_second(const Way& way, const MatrixView<T>& in, int64_t columns, int64_t depth,
                          Wide<T>* out) {
  pack_columns(way, MatrixView<T>{in.data, in.column_stride, in.row_stride}, columns, depth, out);
}

/// Rows as the first factor, where the way packs them.
template <class Way, class T>
HWY_ATTR void pack_first(const Way&, const MatrixView<T>& in, int64_t rows, int64_t depth,
                         Wide<T>* out) {
  pack_panels<kTileRows>(in, rows, depth,
                         reinterpret_cast<typename Way::template Packed<Wide<T>>*>(out));
}
template <class Tiles>
HWY_ATTR void pack_first(const MatrixWay<Tiles>&, const MatrixView<Bfloat16>&, int64_t, int64_t,
                         float*) {}

/// Where `call` says, in one block: `second` packed, and `first` too with RowsOfA::kPrepared.
template <RowsOfA kRows, class Way, class T>
HWY_ATTR void multiply_tiles(const Way& way, const GemmCall<T, Wide<T>>& call,
                             const Wide<T>* second, const AttentionPanels<Wide<T>>& panels,
                             Wide<T>* first = nullptr) {
  const Panels<Wide<T>> packed{first ? first : panels.rows, const_cast<Wide<T>*>(second), nullptr,
                               panels.matrix, nullptr};
  TileTarget<Wide<T>, Wide<T>> target;
  target.c = call.c;
  target.c_stride = call.c_stride;
  target.rows = call.rows;
  target.columns = call.columns;
  target.base = call.accumulate ? call.c : nullptr;
  target.base_stride = call.c_stride;
  multiply_block<kRows>(way, call.a, packed, call.depth, target);
}

/// Tiles that attention itself has made are not packed again where products take them as they are.
template <class T>
constexpr RowsOfA kOwnRows = std::is_same_v<T, Wide<T>> ? RowsOfA::kInPlace : RowsOfA::kPacked;

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
