// Matrix tiles against the triple loop. Operands are small integers, whose sums are exact in fp32
// in any order: results are equal bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "strait/base/bfloat16.h"
#include "strait/kernel/attention.h"
#include "strait/kernel/gemm.h"
#include "strait/kernel/normal.h"
#include "tests/kernel/edge_vector.h"
#include "tests/kernel/emulated_tiles.h"
#include "tests/kernel/targets.h"
// After targets.h, which names the library's instruction sets.
#include "strait/kernel/gemm_block-inl.h"

namespace strait::kernel {
namespace {

struct ProductCase {
  int64_t rows = 0, columns = 0, depth = 0;
  bool a_transposed = false, b_transposed = false;
};

/// -most .. most, zero among them.
template <class T = Bfloat16>
EdgeVector<T> small_integers(int64_t count, uint64_t seed, int most = 8) {
  EdgeVector<T> values;
  values.reserve(static_cast<size_t>(count));
  uint64_t state = seed;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    values.emplace_back(
        static_cast<float>(static_cast<int>((state >> 33) % (2 * most + 1)) - most));
  }
  return values;
}

template <class T>
MatrixView<T> view(const EdgeVector<T>& values, int64_t stride, bool transposed) {
  return {values.data(), transposed ? 1 : stride, transposed ? stride : 1};
}

template <class T>
EdgeVector<float> triple_loop(const ProductCase& c, const MatrixView<T>& a,
                              const MatrixView<T>& b) {
  EdgeVector<float> sums(static_cast<size_t>(c.rows * c.columns));
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t k = 0; k < c.depth; ++k) {
      const float factor = a.data[i * a.row_stride + k * a.column_stride];
      for (int64_t j = 0; j < c.columns; ++j)
        sums[i * c.columns + j] += factor * b.data[k * b.row_stride + j * b.column_stride];
    }
  return sums;
}

using Threads = std::vector<int>;

/// `multiply` fills c of the call, once for each of `threads`. Of fp32 the first factors need more
/// bits than bf16 has.
template <class T, class Multiply>
void expect_triple_loop(const ProductCase& c, const Multiply& multiply, const Threads& threads) {
  const int64_t a_stride = c.a_transposed ? c.rows : c.depth;
  const int64_t b_stride = c.b_transposed ? c.depth : c.columns;
  const auto a = small_integers<T>(c.rows * c.depth, 1, sizeof(T) == 4 ? 511 : 8);
  const auto b = small_integers<T>(c.depth * c.columns, 2);
  GemmCall<T, float> call{c.rows, c.columns, c.depth, view(a, a_stride, c.a_transposed),
                          view(b, b_stride, c.b_transposed)};
  const EdgeVector<float> wanted = triple_loop(c, call.a, call.b);
  for (const int count : threads) {
    EdgeVector<float> sums(wanted.size(), -1.0f);
    call.c = sums.data();
    call.c_stride = c.columns;
    multiply(call, count);
    ASSERT_EQ(sums, wanted) << c.rows << " x " << c.columns << " x " << c.depth << " "
                            << c.a_transposed << c.b_transposed << ", elements of " << sizeof(T)
                            << " bytes, " << count << " threads";
  }
}

/// bf16 and fp32, with the instructions in plain C.
void expect_triple_loop(const ProductCase& c, const Threads& threads = {1}) {
  const auto multiply = [](auto& call, int count) {
    call.products = NarrowProducts::kPlainTiles;
    gemm(call, count);
  };
  expect_triple_loop<Bfloat16>(c, multiply, threads);
  expect_triple_loop<float>(c, multiply, threads);
}

/// Every pair of sizes from 1 to 70, the third one mixed from them, operands in all four orders.
TEST(TileProducts, PlainTilesEqualTheTripleLoopOnAllSmallSizes) {
  constexpr int64_t kMost = 70;
  for (int64_t first = 1; first <= kMost; ++first) {
    for (int64_t second = 1; second <= kMost; ++second) {
      const int64_t third = 1 + (11 * first + 29 * second) % kMost;
      const bool a = (first + second) % 2 == 0, b = (first + third) % 2 == 0;
      expect_triple_loop({first, second, third, a, b});
      expect_triple_loop({first, third, second, a, !b});
      expect_triple_loop({third, first, second, !a, b});
    }
  }
}

#if HWY_ARCH_X86_64
/// Results in bf16: of few rows, they are made transposed.
void expect_rounded_alike(int64_t rows, int64_t columns, int64_t depth) {
  const auto a = small_integers(rows * depth, 1), b = small_integers(columns * depth, 2);
  EdgeVector<Bfloat16> plain(static_cast<size_t>(rows * columns)), native = plain;
  GemmCall<Bfloat16> call{rows,         columns, depth, view(a, depth, false), view(b, depth, true),
                          plain.data(), columns};
  call.products = NarrowProducts::kPlainTiles;
  gemm(call, 1);
  call.c = native.data();
  HWY_NAMESPACE::gemm_matrix<MatrixTiles>(call, {0, rows, 0, columns});
  EXPECT_EQ(EdgeVector<float>(native.begin(), native.end()),
            EdgeVector<float>(plain.begin(), plain.end()))
      << rows << " x " << columns;
}

/// The processor's instructions as they were compiled; a processor without them has them emulated.
TEST(TileProducts, InstructionsEqualTheTripleLoop) {
  const bool native = tile_access() == TileAccess::kGranted;
  const EmulatedTiles emulated;
  const auto expect = [](const ProductCase& c) {
    const auto by_instructions = [](const auto& call, int) {
      HWY_NAMESPACE::gemm_matrix<MatrixTiles>(call, {0, call.rows, 0, call.columns});
    };
    expect_triple_loop<Bfloat16>(c, by_instructions, {1});
    if (c.rows % 4 < 2) expect_triple_loop<float>(c, by_instructions, {1});
  };
  for (int64_t rows = 1; rows <= 70; ++rows)
    for (const int64_t columns : {1, 16, 17, 32, 33, 70})
      for (const int64_t depth : {1, 31, 32, 33, 64, 69})
        expect({rows, columns, depth, rows % 2 == 0, (rows + depth) % 3 == 0});
  expect({130, 800, 801, false, true});
  for (const int64_t rows : {1, 17, 64})
    for (const int64_t columns : {16, 33, 70}) expect_rounded_alike(rows, columns, 96);
  if (native)
    EXPECT_EQ(EmulatedTiles::instructions(), 0);
  else
    EXPECT_GT(EmulatedTiles::instructions(), 100000);
}
#endif

TEST(TileProducts, EveryInstructionSetPacksAlike) {
  on_every_target([] {
    for (const int64_t size : {1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 65})
      for (const bool a : {false, true})
        for (const bool b : {false, true}) expect_triple_loop({size, 80 - size, 97 - size, a, b});
  });
}

/// The linear layers of a block of width 96, four blocks of depth and of columns among them.
TEST(TileProducts, ShapesOfAStepEqualTheTripleLoop) {
  constexpr int64_t kRows = 130, kWidth = 96, kWide = 2400;
  const auto expect = [](const ProductCase& c) { expect_triple_loop(c, {1, 2, 3}); };
  expect({kRows, kWide, kWidth, false, true});  // y = x W^T
  expect({kRows, kWidth, kWide, false, true});
  expect({kRows, kWidth, kWide, false, false});  // dx = dy W
  expect({kWide, kWidth, kRows, true, false});   // dW = dy^T x
  expect({kWidth, kWidth, 1601, true, false});
  expect({259, 200, 97, true, false});    // two groups of turned rows and a ragged one
  expect({40, 3200, 33, false, false});   // two blocks of columns, of one depth
  expect({300, 1600, 768, true, false});  // columns that fit beside so much depth
}

TEST(TileProducts, EveryColumnOfAWideBlockGetsItsBias) {
  constexpr int64_t kRows = 3, kColumns = 3200, kDepth = 34;
  const auto a = small_integers(kRows * kDepth, 1), b = small_integers(kDepth * kColumns, 2);
  const auto bias = small_integers(kColumns, 3);
  GemmCall<Bfloat16, float> call{kRows, kColumns, kDepth, view(a, kDepth, false),
                                 view(b, kColumns, false)};
  EdgeVector<float> sums(static_cast<size_t>(kRows * kColumns));
  call.c = sums.data();
  call.c_stride = kColumns;
  call.bias = bias.data();
  call.products = NarrowProducts::kPlainTiles;
  gemm(call, 1);
  EdgeVector<float> wanted = triple_loop({kRows, kColumns, kDepth}, call.a, call.b);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += bias[i % kColumns];
  EXPECT_EQ(sums, wanted);
}

/// Numbers of all exponents that products leave finite, subnormal ones too; signs and lower bits
/// mixed.
EdgeVector<float> full_numbers(int64_t count, uint64_t seed) {
  EdgeVector<float> values;
  values.reserve(static_cast<size_t>(count));
  uint64_t state = seed;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto exponent = static_cast<uint32_t>((state >> 20) % 220);
    const uint32_t others = static_cast<uint32_t>(state >> 32) & 0x807fffffU;
    values.push_back(std::bit_cast<float>(others | exponent << 23));
  }
  return values;
}

/// Parts below 2^-133 are lost.
void expect_number(float result, float number, float factor) {
  const float wanted = number * factor;
  const bool whole = std::abs(number) >= 0x1p-109f;
  ASSERT_NEAR(result, wanted, whole ? 0.0f : std::abs(factor) * 0x1p-132f);
}

/// A matrix of one power of two in each row and column takes the other operand's numbers to other
/// places: all three parts arrive, whichever side they are on.
TEST(TileProducts, NoBitOfFp32IsLost) {
  constexpr int64_t kSize = 300;  // two blocks of depth
  const auto numbers = full_numbers(kSize * kSize, 7);
  EdgeVector<float> moves(static_cast<size_t>(kSize * kSize)), result(moves.size());
  const auto place = [](int64_t i) { return i * 7 % kSize; };
  for (int64_t i = 0; i < kSize; ++i) moves[place(i) * kSize + i] = i % 2 == 0 ? 4.0f : -0.5f;
  GemmCall<float> call{kSize, kSize, kSize, view(numbers, kSize, false), view(moves, kSize, false)};
  call.c = result.data();
  call.c_stride = kSize;
  call.products = NarrowProducts::kPlainTiles;
  gemm(call, 1);
  for (int64_t row = 0; row < kSize; ++row)
    for (int64_t i = 0; i < kSize; ++i)
      expect_number(result[row * kSize + i], numbers[row * kSize + place(i)],
                    moves[place(i) * kSize + i]);
  std::swap(call.a, call.b);
  gemm(call, 1);
  for (int64_t i = 0; i < kSize; ++i)
    for (int64_t column = 0; column < kSize; ++column)
      expect_number(result[place(i) * kSize + column], numbers[i * kSize + column],
                    moves[place(i) * kSize + i]);
}

TEST(TileProducts, WhatIsNotFiniteInBf16MakesNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto twice = [](float value) {
    const EdgeVector<float> a(1, value), b(1, 2.0f);
    EdgeVector<float> result(1);
    GemmCall<float> call{1, 1, 1, view(a, 1, false), view(b, 1, false), result.data(), 1};
    call.products = NarrowProducts::kPlainTiles;
    gemm(call, 1);
    return result[0];
  };
  const float least = 0x1p128 - 0x1p119;
  for (const float value : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), least})
    EXPECT_TRUE(std::isnan(twice(value))) << value;
  EXPECT_EQ(twice(std::nextafter(least, 0.0f) / 2), std::nextafter(least, 0.0f));
}

/// Root of the mean squared error against fp64, of standard normal numbers.
double error_of(NarrowProducts products, int64_t depth) {
  constexpr int64_t kSize = 64;
  EdgeVector<float> a(static_cast<size_t>(kSize * depth)), b(a.size());
  EdgeVector<float> result(static_cast<size_t>(kSize * kSize));
  const auto count = static_cast<int64_t>(a.size());
  normal<float>({1, 0, count, 1.0, a.data()});
  normal<float>({2, 0, count, 1.0, b.data()});
  GemmCall<float> call{kSize, kSize, depth, view(a, depth, false), view(b, depth, true)};
  call.c = result.data();
  call.c_stride = kSize;
  call.products = products;
  gemm(call, 1);
  double squares = 0;
  for (int64_t i = 0; i < kSize; ++i)
    for (int64_t j = 0; j < kSize; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k)
        sum += static_cast<double>(a[i * depth + k]) * static_cast<double>(b[j * depth + k]);
      squares += std::pow(sum - static_cast<double>(result[i * kSize + j]), 2);
    }
  return std::sqrt(squares / (kSize * kSize));
}

/// A single product may lose what is left out of it, and again as its parts are added up; sums add
/// half as often.
TEST(TileProducts, Fp32IsNoLessExactThanByVectors) {
  for (const int64_t depth : {1, 2, 16, 64, 256, 768, 3072}) {
    const double tiles = error_of(NarrowProducts::kPlainTiles, depth);
    const double vectors = error_of(NarrowProducts::kWidened, depth);
    EXPECT_LE(tiles, (depth == 1 ? 1.25 : 1.0) * vectors) << depth;
    EXPECT_GT(tiles, 0.3 * vectors) << depth;
  }
}

/// Numbers whose sums are rounded, so that another order of adding shows.
template <class T>
EdgeVector<T> normal_numbers(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  normal<float>({seed, 0, count, 1.0, values.data()});
  return EdgeVector<T>(values.begin(), values.end());
}

template <class T>
void expect_rows_to_stand_alone(int64_t depth) {
  constexpr int64_t kRows = 70, kColumns = 41;
  const auto a = normal_numbers<T>(kRows * depth, 1), b = normal_numbers<T>(depth * kColumns, 2);
  const auto before = normal_numbers<T>(kRows * kColumns, 3);
  const auto multiply = [&](int64_t rows, int64_t columns) {
    EdgeVector<float> c(before.begin(), before.end());
    GemmCall<T, float> call{rows,     columns, depth, {a.data(), depth, 1}, {b.data(), kColumns, 1},
                            c.data(), kColumns};
    call.accumulate = true;
    call.products = NarrowProducts::kPlainTiles;
    gemm(call, 1);
    return c;
  };
  const auto whole = multiply(kRows, kColumns);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{5, 41}, {23, 32}, {64, 7}}) {
    const auto part = multiply(rows, columns);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column)
        ASSERT_EQ(part[row * kColumns + column], whole[row * kColumns + column])
            << rows << " x " << columns << ": " << row << ", " << column;
  }
}
TEST(TileProducts, ASumDoesNotDependOnTheOtherRowsAndColumns) {
  for (const int64_t depth : {40, 800, 3200}) {
    expect_rows_to_stand_alone<Bfloat16>(depth);
    expect_rows_to_stand_alone<float>(depth);
  }
}

/// Few rows meet columns where those lie, if their depths are neighbours; copied, so that columns
/// are neighbours, they are packed. Both add up in one order.
TEST(TileProducts, ASumDoesNotDependOnWhereColumnsLie) {
  const auto expect = [](int64_t rows, int64_t columns, int64_t depth) {
    const auto a = normal_numbers<Bfloat16>(rows * depth, 1);
    const auto b = normal_numbers<Bfloat16>(columns * depth, 2);
    const auto bias = normal_numbers<Bfloat16>(columns, 3);
    const auto before = normal_numbers<Bfloat16>(rows * columns, 4);
    EdgeVector<Bfloat16> copied(b.size());
    for (int64_t column = 0; column < columns; ++column)
      for (int64_t k = 0; k < depth; ++k) copied[k * columns + column] = b[column * depth + k];
    const auto multiply = [&](const MatrixView<Bfloat16>& factor, bool accumulate, int threads) {
      EdgeVector<Bfloat16> c = before;
      GemmCall<Bfloat16> call{rows,   columns,  depth,  view(a, depth, false),
                              factor, c.data(), columns};
      call.accumulate = accumulate;
      call.bias = accumulate ? nullptr : bias.data();
      call.products = NarrowProducts::kPlainTiles;
      gemm(call, threads);
      return EdgeVector<float>(c.begin(), c.end());
    };
    for (const bool accumulate : {false, true}) {
      const auto wanted = multiply(view(copied, columns, false), accumulate, 1);
      for (const int threads : {1, 2, 3})
        ASSERT_EQ(multiply(view(b, depth, true), accumulate, threads), wanted)
            << rows << " x " << columns << " x " << depth << ", " << threads << " threads";
    }
  };
  for (const int64_t rows : {1, 5, 16, 17, 31, 32, 33, 64, 70})
    for (const int64_t columns : {1, 15, 16, 33, 64, 70})
      for (const int64_t depth : {1, 31, 64, 96, 129, 320}) expect(rows, columns, depth);
  expect(256, 96, 2304);
  expect(17, 48, 3232);  // more than a block of depth
  expect(37, 3300, 64);  // two blocks of columns
  expect(257, 64, 64);   // too many rows
}

TEST(TileProducts, PermissionIsAskedOnlyWhereThereAreTiles) {
  int asked = 0;
  const auto answer = [&](bool granted) {
    return [&asked, granted] { return ++asked > 0 && granted; };
  };
  EXPECT_EQ(request_tiles(false, answer(true)), TileAccess::kMissing);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(request_tiles(true, answer(true)), TileAccess::kGranted);
  EXPECT_EQ(request_tiles(true, answer(false)), TileAccess::kDenied);
  EXPECT_EQ(asked, 2);
  EXPECT_NE(tile_text(TileAccess::kDenied).find("denies"), std::string::npos);
}

/// Integers again: the products of scores and values are exact, and what lies between them is the
/// same code.
TEST(TileProducts, AttentionEqualsThatOfVectors) {
  constexpr int64_t kQueries = 97, kWidth = 40;
  const auto values = small_integers(kQueries * 3 * kWidth, 5);
  const auto attend = [&](NarrowProducts products) {
    EdgeVector<Bfloat16> out(static_cast<size_t>(kQueries * kWidth));
    AttentionCall<Bfloat16> call;
    call.queries = kQueries;
    call.head_width = kWidth;
    call.q = values.data(), call.k = values.data() + kWidth, call.v = values.data() + 2 * kWidth;
    call.q_stride = call.kv_stride = 3 * kWidth;
    call.out = out.data();
    call.out_stride = kWidth;
    call.products = products;
    attention(call);
    return EdgeVector<float>(out.begin(), out.end());
  };
  const auto vectors = attend(NarrowProducts::kWidened);
  const auto tiles = attend(NarrowProducts::kPlainTiles);
  for (size_t i = 0; i < vectors.size(); ++i)
    ASSERT_NEAR(tiles[i], vectors[i], 0x1p-7f * 8) << i;  // values up to 8, rounded once
}

}  // namespace
}  // namespace strait::kernel
