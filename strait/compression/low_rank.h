// Low-rank compression of a sum of matrices by one power iteration per step. Source: Vogels et al.,
// PowerSGD (arXiv 1905.13727). Between the functions the caller sums left and right factors over
// ranks:
//   left = sum of (M_i right);  orthonormalise(left);  right = sum of (M_i^T left)
//   sum of M_i ~ left right^T
// Everything is exact, but for rounding, when the sum has at most as many independent rows as the
// factors have columns.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace strait::compression {

/// A matrix of rows x columns, row-major, and its rank: columns of the factors, which are stored
/// column by column. 1 <= rank <= min(rows, columns).
struct LowRankShape {
  int64_t rows = 0, columns = 0, rank = 0;
  int64_t left_elements() const { return rows * rank; }
  int64_t right_elements() const { return columns * rank; }
};

/// Whether factors of a matrix of these sides are fewer numbers than the matrix.
bool has_low_rank(int64_t rows, int64_t columns, int64_t rank);
/// Ranks that a matrix may have instead of `rank`, itself included, ascending: half to twice as
/// many in about equal ratios, of those that has_low_rank. With a quarter to four times as many
/// nearly all ends at the least one, and learns worse.
std::vector<int64_t> ranks_like(int64_t rows, int64_t columns, int64_t rank);

/// T below: float or double.

/// Fills columns of `right` that are zero with normal numbers of a counter-based stream: before the
/// first step, and when the rank has grown. The same for the same key on every rank.
template <class T>
void fill_right(const LowRankShape& shape, std::span<std::type_identity_t<T>> right, uint64_t key);

/// left = matrix right, with sums in fp64. Cost of this and of project_left: 2 rows
/// columns rank operations.
template <class T>
void project_right(const LowRankShape& shape, std::span<const std::type_identity_t<T>> matrix,
                   std::span<const std::type_identity_t<T>> right,
                   std::span<std::type_identity_t<T>> left);
/// Columns of length 1 at right angles, by modified Gram-Schmidt, twice. A column that depends on
/// those before it becomes zero, and so does all of it in what is made of the factors.
template <class T>
void orthonormalise(const LowRankShape& shape, std::span<std::type_identity_t<T>> left);
/// right = matrix^T left.
template <class T>
void project_left(const LowRankShape& shape, std::span<const std::type_identity_t<T>> matrix,
                  std::span<const std::type_identity_t<T>> left,
                  std::span<std::type_identity_t<T>> right);
/// matrix = left right^T.
template <class T>
void expand(const LowRankShape& shape, std::span<const std::type_identity_t<T>> left,
            std::span<const std::type_identity_t<T>> right,
            std::span<std::type_identity_t<T>> matrix);

/// [c - 1]: norm of what c columns, at most shape.rank, lose of the matrix after five power
/// iterations in fp64 from numbers that `key` draws. Columns of orthonormalise do not depend on
/// those behind them, so one iteration of all is that of every number of columns.
/// Cost: 20 rows columns rank operations, and the matrix in fp64.
template <class T>
std::vector<double> losses_by_rank(const LowRankShape& shape,
                                   std::span<const std::type_identity_t<T>> matrix, uint64_t key);

}  // namespace strait::compression
