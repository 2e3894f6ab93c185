// The matrix products of a GPT-2 124M step. Run with --benchmark_repetitions=5 for a spread.
#include <benchmark/benchmark.h>

#include "strait/bench/bench_step.h"
#include "strait/measure/gemm.h"
#include "strait/measure/rank_team.h"

namespace strait::measure {
namespace {

void product(benchmark::State& state, GemmShape shape, Dtype dtype, int64_t threads,
             GemmEngine engine) {
  const ThreadLimit limit(threads);
  Gemm gemm(shape, dtype, engine);
  gemm.run();
  const std::string failure = gemm.check();
  if (!failure.empty()) return state.SkipWithError(failure.c_str());
  for (auto _ : state) gemm.run();
  state.counters["flops"] = benchmark::Counter(
      shape.flops() * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

std::string name_of(const GemmShape& shape, Dtype dtype, int64_t threads, GemmEngine engine) {
  const std::string form =
      std::string(shape.transpose_a ? "T" : "N") + (shape.transpose_b ? "T" : "N");
  return std::string(engine == GemmEngine::kStrait ? "strait/" : "blas/") + form + "/" +
         std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" + std::to_string(shape.k) +
         "/" + dtype_name(dtype) + "/threads:" + std::to_string(threads);
}

/// Registers before main: 4 sequences of 64 tokens, and a square that shows the ceiling.
bool register_products() {
  std::vector<GemmShape> shapes = step_gemms(gpt2_shape({}, 50257), 4, 64);
  shapes.push_back({.m = 1024, .n = 1024, .k = 1024});
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const int64_t threads : {1, 2}) {
      for (const GemmShape& shape : shapes) {
        for (const GemmEngine engine : {GemmEngine::kStrait, GemmEngine::kBlas}) {
          benchmark::RegisterBenchmark(name_of(shape, dtype, threads, engine).c_str(), product,
                                       shape, dtype, threads, engine)
              ->UseRealTime();
        }
      }
    }
  }
  return true;
}
const bool registered = register_products();

}  // namespace
}  // namespace strait::measure
