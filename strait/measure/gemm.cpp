#include "strait/measure/gemm.h"

#include <cblas.h>
#include <fmt/format.h>
#include <omp.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "strait/base/errors.h"
#include "strait/kernel/gemm.h"
#include "strait/measure/library_product.h"

namespace strait::measure {
namespace {

/// Calls work.operator()<float>(), <double>() or <Bfloat16>().
template <class Work>
auto in_type(Dtype dtype, const Work& work) {
  switch (dtype) {
    case Dtype::kFloat32:
      return work.template operator()<float>();
    case Dtype::kFloat64:
      return work.template operator()<double>();
    case Dtype::kBfloat16:
      return work.template operator()<Bfloat16>();
    default:
      throw UserError(
          fmt::format("gemm: dtype {} has no matrix product; nearest valid choice: fp32 (of fp32, "
                      "fp64, bf16)",
                      dtype_name(dtype)));
  }
}

double unit_roundoff(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? 0x1p-53 : dtype == Dtype::kFloat32 ? 0x1p-24 : 0x1p-8;
}

constexpr size_t kAlignment = 64;

/// Dense and row-major.
class Matrix {
 public:
  /// Every number is `value(number of the element)`, rounded.
  template <class Value>
  Matrix(int64_t rows, int64_t columns, Dtype dtype, Value value)
      : columns_(columns), dtype_(dtype) {
    const auto bytes = static_cast<size_t>(rows * columns * dtype_bytes(dtype));
    data_.reset(std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment));
    if (!data_) throw NothingFits(fmt::format("gemm: the system refused {} bytes", bytes));
    in_type(dtype, [&]<class T>() {
      for (int64_t at = 0; at < rows * columns; ++at) data<T>()[at] = static_cast<T>(value(at));
    });
  }

  template <class T>
  T* data() const {
    return static_cast<T*>(data_.get());
  }
  int64_t columns() const { return columns_; }
  double operator()(int64_t row, int64_t column) const {
    return in_type(
        dtype_, [&]<class T>() { return static_cast<double>(data<T>()[row * columns_ + column]); });
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> data_;
  int64_t columns_;
  Dtype dtype_;
};

/// Of reproducible values in (-1, 1) that all three types round to differently, but reproducibly.
Matrix filled(int64_t rows, int64_t columns, Dtype dtype, uint64_t seed) {
  return {rows, columns, dtype, [state = seed](int64_t) mutable {
            state = state * 6364136223846793005ULL + 1442695040888963407ULL;
            return static_cast<double>(state >> 11) * 0x1p-52 - 1.0;
          }};
}

CBLAS_TRANSPOSE transposed(bool yes) { return yes ? CblasTrans : CblasNoTrans; }

}  // namespace

struct Gemm::Operands {
  Matrix a, b, c;
};

double GemmShape::flops() const {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

GemmEngine other_engine(Dtype dtype) {
  return dtype == Dtype::kBfloat16 ? GemmEngine::kTorch : GemmEngine::kBlas;
}

Gemm::Gemm(const GemmShape& shape, Dtype dtype, GemmEngine engine)
    : shape_(shape), dtype_(dtype), engine_(engine) {
  if (shape.m < 1 || shape.n < 1 || shape.k < 1) {
    throw UserError(fmt::format("gemm: m = {}, n = {}, k = {} must all be at least 1", shape.m,
                                shape.n, shape.k));
  }
  in_type(dtype, []<class T>() {});  // throws for others
  if (engine != GemmEngine::kStrait && engine != other_engine(dtype)) {
    throw UserError(fmt::format("gemm: this engine does not multiply {}; nearest valid choice: {}",
                                dtype_name(dtype), dtype == Dtype::kBfloat16 ? "fp32" : "bf16"));
  }
  operands_ = std::make_unique<Operands>(Operands{
      shape.transpose_a ? filled(shape.k, shape.m, dtype, 1) : filled(shape.m, shape.k, dtype, 1),
      shape.transpose_b ? filled(shape.n, shape.k, dtype, 2) : filled(shape.k, shape.n, dtype, 2),
      Matrix(shape.m, shape.n, dtype,
             [](int64_t) { return std::numeric_limits<float>::quiet_NaN(); })});
}

Gemm::~Gemm() = default;

template <class T>
void Gemm::run_strait() {
  const auto view = [](const Matrix& matrix, bool transpose) {
    const int64_t width = matrix.columns();
    return kernel::MatrixView<T>{matrix.data<T>(), transpose ? 1 : width, transpose ? width : 1};
  };
  kernel::GemmCall<T> call;
  call.rows = shape_.m;
  call.columns = shape_.n;
  call.depth = shape_.k;
  call.a = view(operands_->a, shape_.transpose_a);
  call.b = view(operands_->b, shape_.transpose_b);
  call.c = operands_->c.data<T>();
  call.c_stride = shape_.n;
  call.products = products_;
  kernel::gemm<T>(call, omp_get_max_threads());
}

void Gemm::run_blas() {
  const auto [m, n, k] = std::array{shape_.m, shape_.n, shape_.k};
  const Matrix &a = operands_->a, &b = operands_->b, &c = operands_->c;
  const int64_t lda = shape_.transpose_a ? m : k, ldb = shape_.transpose_b ? k : n;
  const auto ta = transposed(shape_.transpose_a), tb = transposed(shape_.transpose_b);
  if (dtype_ == Dtype::kFloat32) {
    cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1.0f, a.data<float>(), lda, b.data<float>(), ldb,
                0.0f, c.data<float>(), n);
  } else {
    cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1.0, a.data<double>(), lda, b.data<double>(), ldb,
                0.0, c.data<double>(), n);
  }
}

void Gemm::run() {
  if (engine_ == GemmEngine::kTorch) {
    multiply_in_library({shape_, operands_->a.data<Bfloat16>(), operands_->b.data<Bfloat16>(),
                         operands_->c.data<Bfloat16>()});
  } else if (engine_ == GemmEngine::kBlas) {
    run_blas();
  } else if (dtype_ == Dtype::kFloat32) {
    run_strait<float>();
  } else if (dtype_ == Dtype::kBfloat16) {
    run_strait<Bfloat16>();
  } else {
    run_strait<double>();
  }
}

namespace {

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

}  // namespace

std::string Gemm::check() const {
  const int64_t last = shape_.m * shape_.n - 1;
  // We and oneDNN add bf16 products up in fp32 and round once; LibTorch's own loop, for at most
  // 16^3 multiply-adds or without AVX512, rounds every sum to bf16.
  const bool sums_in_fp32 =
      dtype_ == Dtype::kBfloat16 &&
      (engine_ == GemmEngine::kStrait || (shape_.m * shape_.n * shape_.k > 4096 && has_avx512()));
  const double unit = unit_roundoff(sums_in_fp32 ? Dtype::kFloat32 : dtype_);
  for (int64_t sample = 0; sample < 64; ++sample) {
    const int64_t place =
        static_cast<int64_t>(static_cast<double>(last) * static_cast<double>(sample) / 63.0);
    const int64_t row = place / shape_.n, column = place % shape_.n;
    long double sum = 0, size = 0;
    for (int64_t i = 0; i < shape_.k; ++i) {
      const double x = shape_.transpose_a ? operands_->a(i, row) : operands_->a(row, i);
      const double y = shape_.transpose_b ? operands_->b(column, i) : operands_->b(i, column);
      const long double term = static_cast<long double>(x) * y;
      sum += term;
      size += std::abs(term);
    }
    const double bound = static_cast<double>((static_cast<double>(shape_.k) + 2.0) * unit * size +
                                             2.0 * unit_roundoff(dtype_) * std::abs(sum));
    const double found = operands_->c(row, column);
    if (!(std::abs(found - static_cast<double>(sum)) <= bound)) {
      return fmt::format("gemm {} x {} x {} {}: element ({}, {}) is {}, not {} +- {}", shape_.m,
                         shape_.n, shape_.k, dtype_name(dtype_), row, column, found,
                         static_cast<double>(sum), bound);
    }
  }
  return "";
}

}  // namespace strait::measure
