// AdamW, SGD and the norm against the bytes they move. Run with --benchmark_repetitions=5 for a
// spread.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "strait/optim/adamw.h"
#include "strait/optim/norm.h"
#include "strait/optim/sgd.h"

namespace strait::optim {
namespace {

constexpr int64_t kElements = 32 << 20;  // 128 MiB of float per buffer: beyond the caches

/// Arguments: elements, threads. bytes_per_second counts bytes read plus written.
template <class T>
void adamw(benchmark::State& state) {
  const int64_t elements = state.range(0);
  const int threads = static_cast<int>(state.range(1));
  std::vector<T> weights(elements, T(1)), gradients(elements, T(0.5)), first(elements),
      second(elements);
  AdamWUpdate update{.learning_rate = 0.25, .eps = 0.0, .step = 1};
  adamw_update(AdamWBuffers<T>{weights, gradients, first, second}, update, threads);
  // Step one moves every weight by the learning rate, whatever the gradient.
  for (const T weight : weights) {
    if (std::abs(weight - T(0.75)) > T(1e-6)) return state.SkipWithError("AdamW is wrong");
  }
  for (auto _ : state) {
    ++update.step;
    adamw_update(AdamWBuffers<T>{weights, gradients, first, second}, update, threads);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * elements * static_cast<int64_t>(7 * sizeof(T)));
}
BENCHMARK(adamw<float>)
    ->Args({kElements, 1})
    ->Args({kElements, 2})
    ->Args({1 << 15, 1})
    ->UseRealTime();
BENCHMARK(adamw<double>)->Args({kElements / 2, 1})->Args({kElements / 2, 2})->UseRealTime();

void sgd(benchmark::State& state) {
  const int64_t elements = state.range(0);
  const int threads = static_cast<int>(state.range(1));
  std::vector<float> weights(elements, 1.0f), gradients(elements, 0.5f), momentum(elements);
  const SgdUpdate update{.learning_rate = 0.5};
  sgd_update(SgdBuffers<float>{weights, gradients, momentum}, update, threads);
  for (const float weight : weights) {
    if (weight != 0.75f) return state.SkipWithError("SGD is wrong");
  }
  for (auto _ : state) {
    sgd_update(SgdBuffers<float>{weights, gradients, momentum}, update, threads);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * elements * 5 * 4);
}
BENCHMARK(sgd)->Args({kElements, 1})->Args({kElements, 2})->UseRealTime();

void norm(benchmark::State& state) {
  const int64_t elements = state.range(0);
  const int threads = static_cast<int>(state.range(1));
  const std::vector<float> values(elements, 0.5f);
  const std::span<const float> span(values);
  if (squared_norm(span, threads) != 0.25 * static_cast<double>(elements)) {
    return state.SkipWithError("the norm is wrong");
  }
  for (auto _ : state) benchmark::DoNotOptimize(squared_norm(span, threads));
  state.SetBytesProcessed(state.iterations() * elements * 4);
}
BENCHMARK(norm)->Args({kElements, 1})->Args({kElements, 2})->UseRealTime();

/// The bound: memcpy over as many bytes as AdamW moves, same threads.
void copy(benchmark::State& state) {
  const int64_t elements = state.range(0);
  const int threads = static_cast<int>(state.range(1));
  std::vector<float> source(elements, 1.0f), destination(elements);
  const int64_t part = elements / threads;
  for (auto _ : state) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; ++t) {
      std::memcpy(destination.data() + t * part, source.data() + t * part,
                  static_cast<size_t>(part) * 4);
    }
    benchmark::ClobberMemory();
  }
  if (destination != source) return state.SkipWithError("the copy is wrong");
  state.SetBytesProcessed(state.iterations() * part * threads * 2 * 4);
}
BENCHMARK(copy)->Args({7 * kElements / 2, 1})->Args({7 * kElements / 2, 2})->UseRealTime();

}  // namespace
}  // namespace strait::optim
