// Matrix product on raw memory: packed panels and a register tile (Goto & van de Geijn 2008), for
// every instruction set of dispatch.h. Why not the system's BLAS alone: OpenBLAS chooses kernels by
// processor model and falls back to SSE3 on models newer than itself.
#pragma once

#include <cstdint>

#include "strait/base/bfloat16.h"

namespace strait::kernel {

/// A matrix by its strides; one of the two must be 1.
template <class T>
struct MatrixView {
  const T* data = nullptr;
  int64_t row_stride = 0, column_stride = 0;
};

/// How bf16 operands are multiplied. Both add up in fp32, in different orders.
enum class NarrowProducts : uint8_t {
  kAutomatic,  // what narrow_products() says
  kWidened,    // as fp32 numbers: on every processor
  kPaired      // two depths at a time by AVX512_BF16; where it is missing: widened
};
/// What is faster on this processor: kPaired on AMD's with AVX512_BF16 (Zen 4 and later: twice the
/// rate of fp32), otherwise kWidened (Intel's run that instruction at half the rate of fp32; AMX is
/// their way).
NarrowProducts narrow_products();

/// c[m, n] = (accumulate ? c : base or 0) + (bias or 0) + sum_k a[m, k] b[k, n]. Products are
/// summed up in Wide<T> and rounded to C once.
template <class T, class C = T>
struct GemmCall {
  int64_t rows = 0, columns = 0, depth = 0;  // m, n, k
  MatrixView<T> a, b;
  C* c = nullptr;        // row-major
  int64_t c_stride = 0;  // elements from row to row
  bool accumulate = false;
  const T* bias = nullptr;  // [columns]
  const C* base = nullptr;  // row-major, may be c; not with accumulate
  int64_t base_stride = 0;
  NarrowProducts products = NarrowProducts::kAutomatic;  // bf16 only
};

/// Runs on `threads` OpenMP threads. The order of every sum is fixed: the result does not depend on
/// `threads`, nor on the other rows or columns. c must not overlap a, b. Each thread keeps up to
/// 2.5 MB for packed panels from its first call on; after that nothing is allocated. Defined for
/// (T, C) = (float, float), (double, double), (Bfloat16, Bfloat16), (Bfloat16, float).
template <class T, class C = T>
void gemm(const GemmCall<T, C>& call, int threads);

}  // namespace strait::kernel
