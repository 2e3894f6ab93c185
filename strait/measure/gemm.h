// Matrix products as the model runs them, C = A B, row-major, and as others run them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "strait/base/dtype.h"
#include "strait/kernel/products.h"

namespace strait::measure {

struct GemmShape {
  int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false;  // A is stored [k, m]
  bool transpose_b = false;  // B is stored [n, k], as the weight of a linear layer is
  int64_t count = 1;         // how often it occurs, where shapes are listed
  double flops() const;      // of one product, multiply-adds count two
};

/// Who multiplies.
enum class GemmEngine : uint8_t {
  kStrait,  // strait/kernel/gemm.h, which the model runs on: fp32, fp64, bf16
  kBlas,    // the BLAS that LibTorch is linked with: fp32, fp64
  kTorch,   // LibTorch, which calls oneDNN: bf16
};
/// The one that others are compared with: kTorch for bf16, else kBlas.
GemmEngine other_engine(Dtype dtype);

/// One product with its own operands of reproducible values in (-1, 1). Uses the OpenMP limit of
/// the calling thread. Not thread-safe; one per rank.
class Gemm {
 public:
  /// Allocates and fills (m k + k n + m n) elements. UserError for a size below 1 or a dtype that
  /// the engine cannot multiply.
  Gemm(const GemmShape& shape, Dtype dtype, GemmEngine engine);
  /// By kStrait; bf16 by `products`.
  Gemm(const GemmShape& shape, Dtype dtype,
       kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic)
      : Gemm(shape, dtype, GemmEngine::kStrait) {
    products_ = products;
  }
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  void run();

  /// Compares 64 elements spread over the last result, corners included, with sums in long double.
  /// "" when all lie within (k + 2) * unit roundoff * sum |a||b|, the bound for a sum in any order
  /// (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), plus the rounding of
  /// the result; else which element, both values.
  std::string check() const;

 private:
  struct Operands;
  template <class T>
  void run_strait();
  void run_blas();

  GemmShape shape_;
  Dtype dtype_;
  GemmEngine engine_;
  kernel::NarrowProducts products_ = kernel::NarrowProducts::kAutomatic;
  std::unique_ptr<Operands> operands_;
};

}  // namespace strait::measure
