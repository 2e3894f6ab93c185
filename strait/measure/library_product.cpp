#include "strait/measure/library_product.h"

#include <ATen/ATen.h>

namespace strait::measure {
namespace {

at::Tensor matrix(const Bfloat16* data, int64_t rows, int64_t columns) {
  return at::from_blob(const_cast<Bfloat16*>(data), {rows, columns},
                       at::TensorOptions(at::kBFloat16));
}

void multiply(const LibraryProduct& product) {
  const GemmShape& shape = product.shape;
  const at::Tensor a = shape.transpose_a ? matrix(product.a, shape.k, shape.m).t()
                                         : matrix(product.a, shape.m, shape.k);
  const at::Tensor b = shape.transpose_b ? matrix(product.b, shape.n, shape.k).t()
                                         : matrix(product.b, shape.k, shape.n);
  at::Tensor c = matrix(product.c, shape.m, shape.n);
  at::mm_out(c, a, b);
}

const Provides kProduct(multiply_in_library, multiply);

}  // namespace
}  // namespace strait::measure
