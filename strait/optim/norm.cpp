// The kernel is compiled once per instruction set by Highway; the best one is chosen when it is
// called.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/optim/norm.cpp"
#include "strait/optim/norm.h"

#include <vector>

#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "strait/optim/split.h"

HWY_BEFORE_NAMESPACE();
namespace strait::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Sixteen partial sums whatever the vector width: element i goes to sum i mod 16.
constexpr size_t kSums = 16;
/// Elements by which loads are announced to the memory: one stream alone does not fill its queues.
constexpr size_t kAhead = 512;

template <class D>
HWY_INLINE hn::Vec<D> load_double(D d, const double* values) {
  return hn::LoadU(d, values);
}
template <class D>
HWY_INLINE hn::Vec<D> load_double(D d, const float* values) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), values));
}

/// Adds the squares of whole groups of sixteen to `sums`; returns how many elements that were.
/// Vectors of eight and of four lanes (AVX-512, AVX2) keep the sums in registers.
template <class D, class T>
HWY_INLINE size_t add_groups(D d, const T* values, size_t count, double* sums) {
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  const auto add = [&](size_t lane, hn::Vec<D> sum) {
    const auto a = load_double(d, values + i + lane);
    return hn::MulAdd(a, a, sum);
  };
  // A kilobyte or two ahead, also past the end, where a prefetch does nothing.
  const auto fetch = [&] { hwy::Prefetch(values + i + kAhead); };
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  if (lanes == 8) {
    for (; i + kSums <= count; i += kSums) {
      fetch();
      s0 = add(0, s0);
      s1 = add(8, s1);
    }
    hn::StoreU(s0, d, sums);
    hn::StoreU(s1, d, sums + 8);
  } else if (lanes == 4) {
    for (; i + kSums <= count; i += kSums) {
      fetch();
      s0 = add(0, s0);
      s1 = add(4, s1);
      s2 = add(8, s2);
      s3 = add(12, s3);
    }
    hn::StoreU(s0, d, sums);
    hn::StoreU(s1, d, sums + 4);
    hn::StoreU(s2, d, sums + 8);
    hn::StoreU(s3, d, sums + 12);
  } else {
    for (; i + kSums <= count; i += kSums) {
      for (size_t lane = 0; lane < kSums; lane += lanes) {
        hn::StoreU(add(lane, hn::LoadU(d, sums + lane)), d, sums + lane);
      }
    }
  }
  return i;
}

template <class T>
HWY_INLINE double sum_squares(const T* values, size_t count) {
  // At most eight lanes, so that the sixteen sums are a whole number of vectors. Room for a longer
  // vector, because StoreU of eight lanes at sums + 12 is compiled, though never run.
  const hn::CappedTag<double, 8> d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN double sums[kSums + 8] = {};
  const size_t done = add_groups(d, values, count, sums);
  HWY_ALIGN T tail[kSums] = {};
  for (size_t i = done; i < count; ++i) tail[i - done] = values[i];
  for (size_t lane = 0; lane < kSums; lane += lanes) {
    const auto a = load_double(d, tail + lane);
    hn::StoreU(hn::MulAdd(a, a, hn::LoadU(d, sums + lane)), d, sums + lane);
  }
  double total = 0.0;
  for (size_t i = 0; i < kSums; ++i) total += sums[i];
  return total;
}

double sum_squares_floats(const float* values, size_t count) { return sum_squares(values, count); }
double sum_squares_doubles(const double* values, size_t count) {
  return sum_squares(values, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace strait::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::optim {
HWY_EXPORT(sum_squares_floats);
HWY_EXPORT(sum_squares_doubles);

namespace {

template <class T, class Kernel>
double run(std::span<const T> values, int threads, Kernel kernel) {
  const int64_t elements = static_cast<int64_t>(values.size());
  thread_local std::vector<double> kept;  // the steady state allocates nothing
  kept.resize(static_cast<size_t>((elements + kNormChunkElements - 1) / kNormChunkElements));
  const std::span<double> partial = kept;  // of this thread, for all of its team
  for_each_chunk(elements, kNormChunkElements, threads, [&](int64_t begin, int64_t end) {
    partial[static_cast<size_t>(begin / kNormChunkElements)] =
        kernel(values.data() + begin, static_cast<size_t>(end - begin));
  });
  double total = 0.0;
  for (const double part : partial) total += part;
  return total;
}

}  // namespace

double squared_norm(std::span<const float> values, int threads) {
  return run(values, threads, HWY_DYNAMIC_DISPATCH(sum_squares_floats));
}

double squared_norm(std::span<const double> values, int threads) {
  return run(values, threads, HWY_DYNAMIC_DISPATCH(sum_squares_doubles));
}

}  // namespace strait::optim
#endif
