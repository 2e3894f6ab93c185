// Norms of rows whose columns are cut over ranks. What a norm needs of a whole row are sums over
// its columns, the row's moments: every rank makes its part of them, the parts are summed between
// two calls, and the second call does the rank's own columns. Moments are fp64 whatever the type,
// so that the variance loses nothing where the mean is large.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "strait/kernel/norm.h"
#include "strait/kernel/parallel.h"
#include "strait/model/operations.h"

namespace strait::model {

/// Sums eight columns at a time, in an order that depends on the number of columns alone.
template <class Term>
double sum_columns(int64_t columns, const Term& term) {
  constexpr int64_t kLanes = 8;
  std::array<double, kLanes> sums{};
  int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[static_cast<size_t>(lane)] += term(c + lane);
  for (int64_t lane = 0; c < columns; ++c, ++lane) sums[static_cast<size_t>(lane)] += term(c);
  double sum = 0.0;
  for (const double part : sums) sum += part;
  return sum;
}

/// moments[row] = {sum x, sum x^2}, or {sum x^2} for RMSNorm.
template <class T>
void row_moments(int64_t rows, int64_t columns, const T* x, bool centered, double* moments,
                 int threads) {
  kernel::parallel_ranges(rows, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* at = x + row * columns;
      const auto value = [&](int64_t c) {
        return static_cast<double>(static_cast<Wide<T>>(at[c]));
      };
      double* to = moments + row * (centered ? 2 : 1);
      if (centered) *to++ = sum_columns(columns, value);
      *to = sum_columns(columns, [&](int64_t c) { return value(c) * value(c); });
    }
  });
}

/// Mean (unless null), rstd and out from the moments of whole rows of `whole_columns`.
template <class T>
void norm_from_moments(const kernel::LayerNormCall<T>& call, int64_t whole_columns,
                       const double* moments, int threads) {
  const auto count = static_cast<double>(whole_columns);
  for (int64_t row = 0; row < call.rows; ++row) {
    const double* sums = moments + row * (call.mean ? 2 : 1);
    const double mean = call.mean ? sums[0] / count : 0.0;
    const double squares = sums[call.mean ? 1 : 0] / count;
    if (call.mean) call.mean[row] = static_cast<Wide<T>>(mean);
    const double variance = std::max(0.0, squares - mean * mean);
    call.rstd[row] = static_cast<Wide<T>>(1.0 / std::sqrt(variance + call.epsilon));
  }
  norm_again(call, threads);
}

/// One row of a norm's backward on this rank's columns.
template <class T>
struct NormRow {
  const T *x, *gradient, *weight;
  Wide<T> mean, rstd, from;
  NormRow(const kernel::LayerNormBackwardCall<T>& call, int64_t row)
      : x(call.x + row * call.columns),
        gradient(call.gradient + row * call.columns),
        weight(call.weight),
        mean(call.mean ? call.mean[row] : Wide<T>{0}),
        rstd(call.rstd[row]),
        from(call.from) {}
  Wide<T> normed(int64_t c) const { return (static_cast<Wide<T>>(x[c]) - mean) * rstd; }
  Wide<T> slope(int64_t c) const {
    return static_cast<Wide<T>>(gradient[c]) * (from + static_cast<Wide<T>>(weight[c]));
  }
};

/// moments[row] = {sum g, sum g xhat} with g = gradient * (from + weight), without the first for
/// RMSNorm.
template <class T>
void gradient_moments(const kernel::LayerNormBackwardCall<T>& call, double* moments, int threads) {
  kernel::parallel_ranges(call.rows, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const NormRow<T> at(call, row);
      double* to = moments + row * (call.mean ? 2 : 1);
      const auto slope = [&](int64_t c) { return static_cast<double>(at.slope(c)); };
      if (call.mean) *to++ = sum_columns(call.columns, slope);
      *to = sum_columns(call.columns,
                        [&](int64_t c) { return slope(c) * static_cast<double>(at.normed(c)); });
    }
  });
}

/// norm_backward with the moments of whole rows of `whole_columns`.
template <class T>
void norm_backward_from_moments(const kernel::LayerNormBackwardCall<T>& call, int64_t whole_columns,
                                const double* moments, const LinearGradient<T>& parameters,
                                int threads) {
  kernel::parallel_ranges(call.columns, 64, threads, [&](int64_t begin, int64_t end) {
    kernel::layer_norm_parameters<T>({call.rows, call.columns, begin, end, call.x, call.mean,
                                      call.rstd, call.gradient, parameters.weight, parameters.bias,
                                      parameters.accumulate});
  });
  const auto count = static_cast<double>(whole_columns);
  kernel::parallel_ranges(call.rows, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const NormRow<T> at(call, row);
      const double* sums = moments + row * (call.mean ? 2 : 1);
      const auto average = static_cast<Wide<T>>(call.mean ? sums[0] / count : 0.0);
      const auto along = static_cast<Wide<T>>(sums[call.mean ? 1 : 0] / count);
      const T* residual = call.residual ? call.residual + row * call.columns : nullptr;
      T* out = call.out + row * call.columns;
      for (int64_t c = 0; c < call.columns; ++c) {
        const Wide<T> base = residual ? static_cast<Wide<T>>(residual[c]) : Wide<T>{0};
        const Wide<T> inner = at.slope(c) - average - at.normed(c) * along;
        out[c] = static_cast<T>(base + at.rstd * inner);
      }
    }
  });
}

}  // namespace strait::model
