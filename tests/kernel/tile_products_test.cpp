// Matrix tiles against the triple loop. Operands are small integers, whose sums are exact in fp32
// in any order: results are equal bit for bit.
#include <gtest/gtest.h>

#include <vector>

#include "strait/base/bfloat16.h"
#include "strait/kernel/attention.h"
#include "strait/kernel/gemm.h"
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

/// -8 .. 8, zero among them.
EdgeVector<Bfloat16> small_integers(int64_t count, uint64_t seed) {
  EdgeVector<Bfloat16> values;
  uint64_t state = seed;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    values.emplace_back(static_cast<float>(static_cast<int>((state >> 33) % 17) - 8));
  }
  return values;
}

MatrixView<Bfloat16> view(const EdgeVector<Bfloat16>& values, int64_t stride, bool transposed) {
  return {values.data(), transposed ? 1 : stride, transposed ? stride : 1};
}

EdgeVector<float> triple_loop(const ProductCase& c, const MatrixView<Bfloat16>& a,
                              const MatrixView<Bfloat16>& b) {
  EdgeVector<float> sums(static_cast<size_t>(c.rows * c.columns));
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t k = 0; k < c.depth; ++k) {
      const float factor = a.data[i * a.row_stride + k * a.column_stride];
      for (int64_t j = 0; j < c.columns; ++j)
        sums[i * c.columns + j] += factor * b.data[k * b.row_stride + j * b.column_stride];
    }
  return sums;
}

/// `multiply` fills c of the call.
template <class Multiply>
void expect_triple_loop(const ProductCase& c, const Multiply& multiply) {
  const int64_t a_stride = c.a_transposed ? c.rows : c.depth;
  const int64_t b_stride = c.b_transposed ? c.depth : c.columns;
  const auto a = small_integers(c.rows * c.depth, 1), b = small_integers(c.depth * c.columns, 2);
  GemmCall<Bfloat16, float> call{c.rows, c.columns, c.depth, view(a, a_stride, c.a_transposed),
                                 view(b, b_stride, c.b_transposed)};
  EdgeVector<float> sums(static_cast<size_t>(c.rows * c.columns), -1.0f);
  call.c = sums.data();
  call.c_stride = c.columns;
  multiply(call);
  ASSERT_EQ(sums, triple_loop(c, call.a, call.b))
      << c.rows << " x " << c.columns << " x " << c.depth << " " << c.a_transposed
      << c.b_transposed;
}

void expect_triple_loop(const ProductCase& c, NarrowProducts products, int threads = 1) {
  expect_triple_loop(c, [&](GemmCall<Bfloat16, float>& call) {
    call.products = products;
    gemm(call, threads);
  });
}

/// Every pair of sizes from 1 to 70, the third one mixed from them, operands in all four orders.
void check_small_sizes(NarrowProducts products) {
  constexpr int64_t kMost = 70;
  for (int64_t first = 1; first <= kMost; ++first) {
    for (int64_t second = 1; second <= kMost; ++second) {
      const int64_t third = 1 + (11 * first + 29 * second) % kMost;
      const bool a = (first + second) % 2 == 0, b = (first + third) % 2 == 0;
      expect_triple_loop({first, second, third, a, b}, products);
      expect_triple_loop({first, third, second, a, !b}, products);
      expect_triple_loop({third, first, second, !a, b}, products);
    }
  }
}

TEST(TileProducts, PlainTilesEqualTheTripleLoopOnAllSmallSizes) {
  check_small_sizes(NarrowProducts::kPlainTiles);
}

#if HWY_ARCH_X86_64
/// The processor's instructions as they were compiled; a processor without them has them emulated.
TEST(TileProducts, InstructionsEqualTheTripleLoop) {
  const bool native = tile_access() == TileAccess::kGranted;
  const EmulatedTiles emulated;
  const auto by_instructions = [](const GemmCall<Bfloat16, float>& call) {
    HWY_NAMESPACE::gemm_matrix<MatrixTiles>(call, {0, call.rows, 0, call.columns});
  };
  for (int64_t rows = 1; rows <= 70; ++rows)
    for (const int64_t columns : {1, 16, 17, 32, 33, 70})
      for (const int64_t depth : {1, 31, 32, 33, 64, 69})
        expect_triple_loop({rows, columns, depth, rows % 2 == 0, (rows + depth) % 3 == 0},
                           by_instructions);
  expect_triple_loop({130, 800, 801, false, true}, by_instructions);
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
        for (const bool b : {false, true})
          expect_triple_loop({size, 80 - size, 97 - size, a, b}, NarrowProducts::kPlainTiles);
  });
}

/// The linear layers of a block of width 96, four blocks of depth and of columns among them.
TEST(TileProducts, ShapesOfAStepEqualTheTripleLoop) {
  constexpr int64_t kRows = 130, kWidth = 96, kWide = 2400;
  for (const int threads : {1, 2, 3}) {
    const auto expect = [&](const ProductCase& c) {
      expect_triple_loop(c, NarrowProducts::kPlainTiles, threads);
    };
    expect({kRows, kWide, kWidth, false, true});  // y = x W^T
    expect({kRows, kWidth, kWide, false, true});
    expect({kRows, kWidth, kWide, false, false});  // dx = dy W
    expect({kWide, kWidth, kRows, true, false});   // dW = dy^T x
    expect({kWidth, kWidth, 1601, true, false});
    expect({259, 200, 97, true, false});    // two groups of turned rows and a ragged one
    expect({40, 3200, 33, false, false});   // two blocks of columns, of one depth
    expect({300, 1600, 768, true, false});  // columns that fit beside so much depth
  }
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
