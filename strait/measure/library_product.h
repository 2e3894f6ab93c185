// Products of bf16 by LibTorch, which calls oneDNN, to compare with.
#pragma once

#include "strait/base/bfloat16.h"
#include "strait/base/provided.h"
#include "strait/measure/gemm.h"

namespace strait::measure {

/// Operands as GemmShape says, dense and row-major.
struct LibraryProduct {
  GemmShape shape;
  const Bfloat16 *a, *b;
  Bfloat16* c;
};
inline constinit Provided<void(const LibraryProduct& product)> multiply_in_library;

}  // namespace strait::measure
