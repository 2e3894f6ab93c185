#include "strait/compression/low_rank.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/random.h"

namespace strait::compression {
namespace {

void require(const LowRankShape& shape, size_t matrix, size_t left, size_t right) {
  ensure(shape.rank >= 1 && shape.rank <= std::min(shape.rows, shape.columns),
         "low rank: the rank is between 1 and the smaller side");
  ensure(static_cast<int64_t>(matrix) == shape.rows * shape.columns &&
             static_cast<int64_t>(left) == shape.left_elements() &&
             static_cast<int64_t>(right) == shape.right_elements(),
         "low rank: matrix and factors do not fit their shape");
}

template <class T>
double dot(const T* a, const T* b, int64_t count) {
  // Sums side by side, in an order that no compiler may change.
  constexpr int64_t kLanes = 16;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += static_cast<double>(a[i + lane]) * b[i + lane];
  for (; i < count; ++i) sums[i % kLanes] += static_cast<double>(a[i]) * b[i];
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace

bool has_low_rank(int64_t rows, int64_t columns, int64_t rank) {
  return rank <= std::min(rows, columns) && (rows + columns) * rank < rows * columns;
}

std::vector<int64_t> ranks_like(int64_t rows, int64_t columns, int64_t rank) {
  constexpr int kPerDoubling = 4;
  std::vector<int64_t> ranks;
  for (int step = -kPerDoubling; step <= kPerDoubling; ++step) {
    const double scale = std::exp2(static_cast<double>(step) / kPerDoubling);
    const int64_t other = std::max<int64_t>(1, std::llround(static_cast<double>(rank) * scale));
    if (has_low_rank(rows, columns, other) && (ranks.empty() || ranks.back() < other))
      ranks.push_back(other);
  }
  return ranks;
}

template <class T>
void fill_right(const LowRankShape& shape, std::span<std::type_identity_t<T>> right, uint64_t key) {
  const RandomStream stream(key, "right factor");
  for (int64_t column = 0; column < shape.rank; ++column) {
    T* const at = right.data() + column * shape.columns;
    if (std::any_of(at, at + shape.columns, [](T value) { return value != 0; })) continue;
    for (int64_t i = 0; i < shape.columns; ++i)
      at[i] = static_cast<T>(stream.normal(static_cast<uint64_t>(column * shape.columns + i)));
  }
}

template <class T>
void project_right(const LowRankShape& shape, std::span<const std::type_identity_t<T>> matrix,
                   std::span<const std::type_identity_t<T>> right,
                   std::span<std::type_identity_t<T>> left) {
  require(shape, matrix.size(), left.size(), right.size());
  for (int64_t row = 0; row < shape.rows; ++row)
    for (int64_t column = 0; column < shape.rank; ++column)
      left[static_cast<size_t>(column * shape.rows + row)] =
          static_cast<T>(dot(matrix.data() + row * shape.columns,
                             right.data() + column * shape.columns, shape.columns));
}

template <class T>
void orthonormalise(const LowRankShape& shape, std::span<std::type_identity_t<T>> left) {
  // What is left of a column below this share of it is rounding.
  constexpr double kDependent = 1e-5;
  for (int64_t column = 0; column < shape.rank; ++column) {
    T* const at = left.data() + column * shape.rows;
    const double before = std::sqrt(dot(at, at, shape.rows));
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t other = 0; other < column; ++other) {
        const T* const base = left.data() + other * shape.rows;
        const double share = dot(at, base, shape.rows);
        for (int64_t i = 0; i < shape.rows; ++i) at[i] = static_cast<T>(at[i] - share * base[i]);
      }
    const double after = std::sqrt(dot(at, at, shape.rows));
    const bool stands = std::isfinite(after) && after > kDependent * before;
    for (int64_t i = 0; i < shape.rows; ++i) at[i] = stands ? static_cast<T>(at[i] / after) : T();
  }
}

template <class T>
void project_left(const LowRankShape& shape, std::span<const std::type_identity_t<T>> matrix,
                  std::span<const std::type_identity_t<T>> left,
                  std::span<std::type_identity_t<T>> right) {
  require(shape, matrix.size(), left.size(), right.size());
  std::vector<double> sums(static_cast<size_t>(shape.columns));
  for (int64_t column = 0; column < shape.rank; ++column) {
    std::ranges::fill(sums, 0.0);
    for (int64_t row = 0; row < shape.rows; ++row) {
      const double weight = left[static_cast<size_t>(column * shape.rows + row)];
      const T* const from = matrix.data() + row * shape.columns;
      for (int64_t i = 0; i < shape.columns; ++i) sums[static_cast<size_t>(i)] += weight * from[i];
    }
    std::transform(sums.begin(), sums.end(), right.begin() + column * shape.columns,
                   [](double sum) { return static_cast<T>(sum); });
  }
}

template <class T>
void expand(const LowRankShape& shape, std::span<const std::type_identity_t<T>> left,
            std::span<const std::type_identity_t<T>> right,
            std::span<std::type_identity_t<T>> matrix) {
  require(shape, matrix.size(), left.size(), right.size());
  std::vector<double> sums(static_cast<size_t>(shape.columns));
  for (int64_t row = 0; row < shape.rows; ++row) {
    std::ranges::fill(sums, 0.0);
    for (int64_t column = 0; column < shape.rank; ++column) {
      const double weight = left[static_cast<size_t>(column * shape.rows + row)];
      const T* const from = right.data() + column * shape.columns;
      for (int64_t i = 0; i < shape.columns; ++i) sums[static_cast<size_t>(i)] += weight * from[i];
    }
    std::transform(sums.begin(), sums.end(), matrix.begin() + row * shape.columns,
                   [](double sum) { return static_cast<T>(sum); });
  }
}

template <class T>
std::vector<double> losses_by_rank(const LowRankShape& shape,
                                   std::span<const std::type_identity_t<T>> matrix, uint64_t key) {
  constexpr int kIterations = 5;
  const std::vector<double> wide(matrix.begin(), matrix.end());
  std::vector<double> left(static_cast<size_t>(shape.left_elements())),
      right(static_cast<size_t>(shape.right_elements()));
  fill_right<double>(shape, right, key);
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    project_right<double>(shape, wide, right, left);
    orthonormalise<double>(shape, left);
    project_left<double>(shape, wide, left, right);
  }
  std::vector<double> losses;
  double lost = dot(wide.data(), wide.data(), std::ssize(wide));
  for (int64_t column = 0; column < shape.rank; ++column) {
    const double* const at = right.data() + column * shape.columns;
    lost -= dot(at, at, shape.columns);
    losses.push_back(std::sqrt(std::max(lost, 0.0)));
  }
  return losses;
}

template std::vector<double> losses_by_rank<float>(const LowRankShape&, std::span<const float>,
                                                   uint64_t);
template std::vector<double> losses_by_rank<double>(const LowRankShape&, std::span<const double>,
                                                    uint64_t);
template void fill_right<float>(const LowRankShape&, std::span<float>, uint64_t);
template void project_right<float>(const LowRankShape&, std::span<const float>,
                                   std::span<const float>, std::span<float>);
template void orthonormalise<float>(const LowRankShape&, std::span<float>);
template void project_left<float>(const LowRankShape&, std::span<const float>,
                                  std::span<const float>, std::span<float>);
template void expand<float>(const LowRankShape&, std::span<const float>, std::span<const float>,
                            std::span<float>);
template void fill_right<double>(const LowRankShape&, std::span<double>, uint64_t);
template void project_right<double>(const LowRankShape&, std::span<const double>,
                                    std::span<const double>, std::span<double>);
template void orthonormalise<double>(const LowRankShape&, std::span<double>);
template void project_left<double>(const LowRankShape&, std::span<const double>,
                                   std::span<const double>, std::span<double>);
template void expand<double>(const LowRankShape&, std::span<const double>, std::span<const double>,
                             std::span<double>);

}  // namespace strait::compression
