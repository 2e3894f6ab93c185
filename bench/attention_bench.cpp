// Causal attention of one head of GPT-2 124M, forward and backward, by length. Rates count causal
// pairs alone. Run with --benchmark_repetitions=5 for a spread.
#include <benchmark/benchmark.h>

#include <vector>

#include "strait/base/dtype.h"
#include "strait/base/random.h"
#include "strait/kernel/attention.h"
#include "strait/kernel/partial_attention.h"

namespace strait::kernel {
namespace {

constexpr int64_t kHeads = 12, kWidth = 64, kColumns = kHeads * kWidth;

template <class T>
std::vector<T> numbers(int64_t count, const char* purpose) {
  const RandomStream stream(7, purpose);
  std::vector<T> all(static_cast<size_t>(count));
  for (size_t i = 0; i < all.size(); ++i) all[i] = T(static_cast<float>(stream.normal(i)));
  return all;
}

/// Rows as a block has them: queries, keys and values of all heads side by side.
template <class T>
struct Head {
  explicit Head(int64_t length)
      : qkv(numbers<T>(length * 3 * kColumns, "qkv")),
        out_gradient(numbers<T>(length * kColumns, "gradient")),
        out(out_gradient.size()),
        gradient(qkv.size()),
        log_sum_exp(static_cast<size_t>(length)),
        delta(log_sum_exp.size()),
        sum(static_cast<size_t>(length * kWidth)) {
    call.queries = length;
    call.head_width = kWidth;
    call.q = qkv.data();
    call.k = call.q + kColumns;
    call.v = call.k + kColumns;
    call.q_stride = call.kv_stride = 3 * kColumns;
    call.out = out.data();
    call.out_stride = kColumns;
    call.log_sum_exp = log_sum_exp.data();
  }
  AttentionBackwardCall<T> backward() {
    AttentionBackwardCall<T> all{.forward = call};
    all.out_gradient = out_gradient.data();
    all.out_gradient_stride = kColumns;
    all.dq = gradient.data();
    all.dk = all.dq + kColumns;
    all.dv = all.dk + kColumns;
    all.gradient_stride = 3 * kColumns;
    all.delta = delta.data();
    all.dq_sum = sum.data();
    return all;
  }

  std::vector<T> qkv, out_gradient, out, gradient;
  std::vector<Wide<T>> log_sum_exp, delta, sum;
  AttentionCall<T> call;
};

/// 2 products forward, 5 backward.
void count_flops(benchmark::State& state, int64_t products) {
  const double length = static_cast<double>(state.range(0));
  state.counters["flops"] =
      benchmark::Counter(static_cast<double>(products * kWidth) * length * (length + 1) *
                             static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}

template <class T>
void forward(benchmark::State& state) {
  Head<T> head(state.range(0));
  for (auto _ : state) attention(head.call);
  count_flops(state, 2);
}

template <class T>
void backward(benchmark::State& state) {
  Head<T> head(state.range(0));
  attention(head.call);
  for (auto _ : state) attention_backward(head.backward());
  count_flops(state, 5);
}

/// A round of a ring with the rank's own keys.
template <class T>
void round_forward(benchmark::State& state) {
  Head<T> head(state.range(0));
  for (auto _ : state)
    partial_attention<T>({.rows = head.call,
                          .keys = head.call.queries,
                          .out = head.sum.data(),
                          .out_stride = kWidth});
  count_flops(state, 2);
}

constexpr int64_t kShortest = 16, kLongest = 8192;
BENCHMARK(forward<float>)->RangeMultiplier(4)->Range(kShortest, kLongest);
BENCHMARK(forward<Bfloat16>)->RangeMultiplier(4)->Range(kShortest, kLongest);
BENCHMARK(backward<float>)->RangeMultiplier(4)->Range(kShortest, kLongest);
BENCHMARK(backward<Bfloat16>)->RangeMultiplier(4)->Range(kShortest, kLongest);
BENCHMARK(round_forward<float>)->RangeMultiplier(4)->Range(kShortest, kLongest);

}  // namespace
}  // namespace strait::kernel
