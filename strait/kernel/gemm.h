// Matrix product on raw memory: packed panels and a register tile (Goto & van de Geijn 2008), for
// every instruction set of dispatch.h. Why not the system's BLAS alone: OpenBLAS chooses kernels by
// processor model and falls back to SSE3 on models newer than itself.
#pragma once

#include <cstdint>

#include "strait/base/bfloat16.h"
#include "strait/kernel/products.h"

namespace strait::kernel {

/// A matrix by its strides; one of the two must be 1.
template <class T>
struct MatrixView {
  const T* data = nullptr;
  int64_t row_stride = 0, column_stride = 0;
};

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
  NarrowProducts products = NarrowProducts::kAutomatic;  // of bf16 and fp32
};

/// A part of a result: rows [row_begin, row_end), columns likewise.
struct GemmPart {
  int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
};

/// Runs on `threads` threads. The order of every sum is fixed: the result does not depend on
/// `threads`, nor on the other rows or columns. c must not overlap a, b. Each thread keeps up to
/// 2.5 MB for packed panels from its first call on; after that nothing is allocated. Defined for
/// (T, C) = (float, float), (double, double), (Bfloat16, Bfloat16), (Bfloat16, float).
template <class T, class C = T>
void gemm(const GemmCall<T, C>& call, int threads);

}  // namespace strait::kernel
