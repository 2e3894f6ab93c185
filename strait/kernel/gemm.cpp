#include "strait/kernel/gemm.h"

#include <algorithm>
#include <type_traits>

#include "strait/kernel/dispatch.h"
#include "strait/kernel/onednn.h"
#include "strait/threads/team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/kernel/gemm.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "strait/kernel/gemm_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

void gemm_range_f32(const GemmCall<float>& call, const GemmPart& part) { gemm_range(call, part); }
void gemm_range_f64(const GemmCall<double>& call, const GemmPart& part) { gemm_range(call, part); }
void gemm_range_bf16(const GemmCall<Bfloat16>& call, const GemmPart& part) {
  gemm_range(call, part);
}
void gemm_range_bf16_f32(const GemmCall<Bfloat16, float>& call, const GemmPart& part) {
  gemm_range(call, part);
}
}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::kernel {

NarrowProducts narrow_products() {
#if HWY_ARCH_X86
  static const bool paired = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd");
  return paired ? NarrowProducts::kPaired : NarrowProducts::kWidened;
#else
  return NarrowProducts::kWidened;
#endif
}

std::string instruction_set() {
  const int64_t own = hwy::SupportedTargets() & ~static_cast<int64_t>(HWY_DISABLED_TARGETS);
  const std::string name = hwy::TargetName(own & -own);  // the lowest bit is the best
  return narrow_products() == NarrowProducts::kPaired ? name + ", bf16 in pairs" : name;
}

namespace {

HWY_EXPORT(gemm_range_f32);
HWY_EXPORT(gemm_range_f64);
HWY_EXPORT(gemm_range_bf16);
HWY_EXPORT(gemm_range_bf16_f32);

void run_range(const GemmCall<float>& call, const GemmPart& part) {
  HWY_DYNAMIC_DISPATCH(gemm_range_f32)(call, part);
}
void run_range(const GemmCall<double>& call, const GemmPart& part) {
  HWY_DYNAMIC_DISPATCH(gemm_range_f64)(call, part);
}
void run_range(const GemmCall<Bfloat16>& call, const GemmPart& part) {
  HWY_DYNAMIC_DISPATCH(gemm_range_bf16)(call, part);
}
void run_range(const GemmCall<Bfloat16, float>& call, const GemmPart& part) {
  HWY_DYNAMIC_DISPATCH(gemm_range_bf16_f32)(call, part);
}

/// How many of `threads` share the rows; the rest of the factor shares the columns. Each thread
/// packs what it reads, so the least total of packed rows and columns wins; rows that tiles read
/// where they lie cost an eighth.
int row_shares(int64_t rows, int64_t columns, int threads, bool in_place) {
  const double row_cost = in_place ? 0.125 : 1.0;
  int best = 1;
  double best_cost = -1;
  for (int shares = 1; shares <= threads; ++shares) {
    if (threads % shares != 0) continue;
    const int others = threads / shares;
    const double cost = row_cost * static_cast<double>((rows + shares - 1) / shares) +
                        static_cast<double>((columns + others - 1) / others);
    if (best_cost < 0 || cost < best_cost) {
      best = shares;
      best_cost = cost;
    }
  }
  return best;
}

/// Begin of part `index` of `parts` of `total`, at a multiple of `unit`.
int64_t part_begin(int64_t total, int parts, int index, int64_t unit) {
  const int64_t units = (total + unit - 1) / unit;
  return std::min(total, units * index / parts * unit);
}

constexpr int64_t kRowUnit = 12, kTileRowUnit = 32, kColumnUnit = 32;
constexpr double kLeastParallelWork = 65536;  // multiply-adds worth a parallel region

bool by_tiles(NarrowProducts products) {
  using enum NarrowProducts;
  return products == kTiles || products == kPlainTiles || products == kSplit;
}

}  // namespace

template <class T, class C>
void gemm(const GemmCall<T, C>& call, int threads) {
  if (call.rows == 0 || call.columns == 0) return;
  if constexpr (std::is_same_v<T, Bfloat16>) {
    if (call.products == NarrowProducts::kOneDnn && has_onednn()) return onednn_gemm(call, threads);
  }
  const double work = static_cast<double>(call.rows) * static_cast<double>(call.columns) *
                      static_cast<double>(call.depth);
  if (threads <= 1 || work < kLeastParallelWork) {
    run_range(call, {0, call.rows, 0, call.columns});
    return;
  }
  const bool tiles = by_tiles(call.products);
  const bool in_place = tiles && sizeof(T) == sizeof(Bfloat16) && call.a.column_stride == 1;
  const int64_t row_unit = tiles ? kTileRowUnit : kRowUnit;
  run_team(threads, [&](int index, int team) {
    const int shares = row_shares(call.rows, call.columns, team, in_place);
    const int other = team / shares;
    const int row_part = index / other, column_part = index % other;
    const GemmPart part{part_begin(call.rows, shares, row_part, row_unit),
                        part_begin(call.rows, shares, row_part + 1, row_unit),
                        part_begin(call.columns, other, column_part, kColumnUnit),
                        part_begin(call.columns, other, column_part + 1, kColumnUnit)};
    if (part.row_begin < part.row_end && part.column_begin < part.column_end) run_range(call, part);
  });
}

template void gemm<float>(const GemmCall<float>& call, int threads);
template void gemm<double>(const GemmCall<double>& call, int threads);
template void gemm<Bfloat16>(const GemmCall<Bfloat16>& call, int threads);
template void gemm<Bfloat16, float>(const GemmCall<Bfloat16, float>& call, int threads);

}  // namespace strait::kernel
#endif
