// What a product by matrix tiles takes beside the tile instructions: packing, turning, fetching and
// storing, on any processor with vectors. "tiles" is that time as a share of what the instructions
// take at 2660 GFLOP/s, the rate of one core of a Sapphire Rapids; below 1 they could hide it.
#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/tile_overhead_bench.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "strait/kernel/gemm_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

/// Registers that nothing is loaded into or multiplied in. They store zeros.
class NoTiles {
 public:
  void begin() {}
  void end() {}
  template <int kTile>
  void zero() {}
  template <int kTile>
  void load(const void* from, int64_t) {
    asm volatile("" ::"r"(from) : "memory");
  }
  template <int kTile>
  HWY_ATTR void store(float* to, int64_t stride) const {
    const hn::ScalableTag<float> d;
    for (int64_t row = 0; row < kUnit; ++row)
      for (int64_t lane = 0; lane < kUnit; lane += lanes_of(d))
        hn::StoreU(hn::Zero(d), d, to + row * stride / 4 + lane);
  }
  template <int kSum, int kA, int kB>
  void dot() {}
};

void without_tiles(const GemmCall<Bfloat16>& call) {
  gemm_matrix<NoTiles>(call, {0, call.rows, 0, call.columns});
}
void without_tiles_wide(const GemmCall<Bfloat16, float>& call) {
  gemm_matrix<NoTiles>(call, {0, call.rows, 0, call.columns});
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <benchmark/benchmark.h>

#include <string>
#include <type_traits>

#include "strait/memory/pool.h"

namespace strait::kernel {
namespace {

HWY_EXPORT(without_tiles);
HWY_EXPORT(without_tiles_wide);

void run(const GemmCall<Bfloat16>& call) { HWY_DYNAMIC_DISPATCH(without_tiles)(call); }
void run(const GemmCall<Bfloat16, float>& call) { HWY_DYNAMIC_DISPATCH(without_tiles_wide)(call); }

constexpr double kTileRate = 2660e9;
constexpr int64_t kMatrices = 24;  // weights, or gradients of weights, that a step passes over

enum class Kind { kForward, kInputGradient, kWeightGradient };

/// A linear layer of `in` to `out` columns on `rows` rows, each time another one.
template <class C>
void linear(benchmark::State& state, Kind kind, int64_t rows, int64_t in, int64_t out) {
  const bool weight = kind == Kind::kWeightGradient;
  memory::Pool pool;
  const auto zeros = [&]<class T>(int64_t count, T*& data) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    data = static_cast<T*>(pool.allocate(bytes));
    std::fill_n(data, count, T{});
  };
  Bfloat16 *x = nullptr, *dy = nullptr, *weights = nullptr;
  C* result = nullptr;
  zeros(rows * in, x);
  zeros(rows * out, dy);
  zeros(weight ? 1 : kMatrices * in * out, weights);
  zeros(weight ? kMatrices * in * out : rows * std::max(in, out), result);
  GemmCall<Bfloat16, C> call{rows, out, in, {x, in, 1}, {weights, 1, in}, result, out};
  if (kind == Kind::kInputGradient)
    call = {rows, in, out, {dy, out, 1}, {weights, in, 1}, result, in};
  if (weight) call = {out, in, rows, {dy, 1, out}, {x, in, 1}, result, in};
  int64_t turn = 0;
  for (auto _ : state) {
    const int64_t at = turn++ % kMatrices * in * out;
    if (weight)
      call.c = result + at;
    else
      call.b.data = weights + at;
    run(call);
  }
  const double flops = 2.0 * static_cast<double>(rows * in * out);
  state.counters["tiles"] = benchmark::Counter(
      flops / kTileRate * static_cast<double>(state.iterations()),
      benchmark::Counter::Flags(benchmark::Counter::kIsRate | benchmark::Counter::kInvert));
  for (void* data : {static_cast<void*>(x), static_cast<void*>(dy), static_cast<void*>(weights),
                     static_cast<void*>(result)})
    pool.release(data);
}

/// Registers before main.
bool register_layers() {
  const auto add = [](const char* name, auto function, Kind kind, int64_t rows, int64_t in,
                      int64_t out) {
    const std::string text = std::string(name) + "/" + std::to_string(rows) + "x" +
                             std::to_string(in) + "x" + std::to_string(out);
    benchmark::RegisterBenchmark(text.c_str(), function, kind, rows, in, out)
        ->Unit(benchmark::kMicrosecond);
  };
  for (const int64_t rows : {256, 1024, 4096})
    for (const auto& [in, out] : {std::pair{768, 3072}, std::pair{3072, 768}}) {
      add("forward", linear<Bfloat16>, Kind::kForward, rows, in, out);
      add("input_gradient", linear<Bfloat16>, Kind::kInputGradient, rows, in, out);
      add("weight_gradient", linear<float>, Kind::kWeightGradient, rows, in, out);
    }
  return true;
}
const bool registered = register_layers();

}  // namespace
}  // namespace strait::kernel
#endif
