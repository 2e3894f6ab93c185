// What factors lose of a matrix: that of its singular values behind them, and for every number of
// columns what a power iteration of so many alone loses.
#include "strait/compression/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>

#include "strait/base/random.h"

namespace strait::compression {
namespace {

std::vector<double> normals(const char* name, int64_t count) {
  const RandomStream stream(7, name);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(stream.normal(static_cast<uint64_t>(i)));
  return values;
}

/// Of singular values 1, 1/2, 1/4, ...
std::vector<double> matrix_of(int64_t rows, int64_t columns, int64_t values) {
  std::vector<double> left = normals("left", rows * values),
                      right = normals("right", columns * values);
  orthonormalise<double>({rows, columns, values}, left);
  orthonormalise<double>({columns, rows, values}, right);
  std::vector<double> matrix(static_cast<size_t>(rows * columns), 0.0);
  for (int64_t value = 0; value < values; ++value)
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column)
        matrix[static_cast<size_t>(row * columns + column)] +=
            std::ldexp(1.0, static_cast<int>(-value)) *
            left[static_cast<size_t>(value * rows + row)] *
            right[static_cast<size_t>(value * columns + column)];
  return matrix;
}

TEST(LossesByRank, AreTheSingularValuesBehindTheRank) {
  constexpr int64_t kValues = 6;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{20, 31}, {17, 9}}) {
    const std::vector<double> matrix = matrix_of(rows, columns, kValues);
    const std::vector<double> losses = losses_by_rank<double>({rows, columns, 7}, matrix, 3);
    ASSERT_EQ(losses.size(), 7u);
    for (int64_t rank = 1; rank <= 7; ++rank) {
      double squares = 0;
      for (int64_t value = rank; value < kValues; ++value)
        squares += std::ldexp(1.0, static_cast<int>(-2 * value));
      EXPECT_NEAR(losses[static_cast<size_t>(rank - 1)], std::sqrt(squares),
                  1e-3 * std::sqrt(squares) + 1e-7)
          << rank;
    }
    const std::vector<float> rounded(matrix.begin(), matrix.end());
    EXPECT_NEAR(losses_by_rank<float>({rows, columns, 7}, rounded, 3)[1], losses[1], 1e-6);
  }
}

TEST(LossesByRank, OfEachRankAreThoseOfFactorsOfThatRankAlone) {
  constexpr int64_t kRows = 14, kColumns = 11;
  const std::vector<double> matrix = normals("matrix", kRows * kColumns);
  const std::vector<double> all = losses_by_rank<double>({kRows, kColumns, 8}, matrix, 5);
  for (int64_t rank = 1; rank <= 8; ++rank) {
    const LowRankShape shape{kRows, kColumns, rank};
    std::vector<double> left(static_cast<size_t>(shape.left_elements())),
        right(static_cast<size_t>(shape.right_elements())), product(matrix.size());
    fill_right<double>(shape, right, 5);
    for (int iteration = 0; iteration < 5; ++iteration) {
      project_right<double>(shape, matrix, right, left);
      orthonormalise<double>(shape, left);
      project_left<double>(shape, matrix, left, right);
    }
    expand<double>(shape, left, right, product);
    double squares = 0;
    for (size_t i = 0; i < matrix.size(); ++i) squares += std::pow(matrix[i] - product[i], 2);
    EXPECT_NEAR(all[static_cast<size_t>(rank - 1)], std::sqrt(squares), 1e-9) << rank;
    if (rank > 1) {
      EXPECT_LT(all[static_cast<size_t>(rank - 1)], all[static_cast<size_t>(rank - 2)]);
    }
  }
}

TEST(LossesByRank, AMatrixOfZerosLosesNothing) {
  const std::vector<double> zeros(12, 0.0);
  EXPECT_EQ(losses_by_rank<double>({4, 3, 2}, zeros, 1), (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace strait::compression
