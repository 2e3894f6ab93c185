#include "strait/measure/gemm.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <cblas.h>
#include <fmt/format.h>
#include <omp.h>

#include <array>
#include <cmath>

#include "strait/base/errors.h"
#include "strait/kernel/gemm.h"

namespace strait::measure {
namespace {

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return at::kFloat;
    case Dtype::kFloat64:
      return at::kDouble;
    case Dtype::kBfloat16:
      return at::kBFloat16;
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

/// Fills with reproducible values in (-1, 1) that all three types round to differently, but
/// reproducibly.
at::Tensor filled(int64_t rows, int64_t columns, at::ScalarType type, uint64_t seed) {
  at::Tensor values = at::empty({rows, columns}, at::TensorOptions(at::kDouble));
  double* data = values.data_ptr<double>();
  uint64_t state = seed;
  for (int64_t i = 0; i < rows * columns; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    data[i] = static_cast<double>(state >> 11) * 0x1p-52 - 1.0;
  }
  return values.to(type);
}

CBLAS_TRANSPOSE transposed(bool yes) { return yes ? CblasTrans : CblasNoTrans; }

}  // namespace

struct Gemm::Operands {
  at::Tensor a, b, c;
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
  const at::ScalarType type = scalar_type(dtype);
  if (engine != GemmEngine::kStrait && engine != other_engine(dtype)) {
    throw UserError(fmt::format("gemm: this engine does not multiply {}; nearest valid choice: {}",
                                dtype_name(dtype), dtype == Dtype::kBfloat16 ? "fp32" : "bf16"));
  }
  operands_ = std::make_unique<Operands>();
  operands_->a =
      shape.transpose_a ? filled(shape.k, shape.m, type, 1) : filled(shape.m, shape.k, type, 1);
  operands_->b =
      shape.transpose_b ? filled(shape.n, shape.k, type, 2) : filled(shape.k, shape.n, type, 2);
  operands_->c = at::empty({shape.m, shape.n}, at::TensorOptions(type)).fill_(NAN);
}

Gemm::~Gemm() = default;

template <class T>
void Gemm::run_strait() {
  const auto view = [](const at::Tensor& tensor, bool transpose) {
    const int64_t width = tensor.size(1);
    return kernel::MatrixView<T>{static_cast<const T*>(tensor.data_ptr()), transpose ? 1 : width,
                                 transpose ? width : 1};
  };
  kernel::GemmCall<T> call;
  call.rows = shape_.m;
  call.columns = shape_.n;
  call.depth = shape_.k;
  call.a = view(operands_->a, shape_.transpose_a);
  call.b = view(operands_->b, shape_.transpose_b);
  call.c = static_cast<T*>(operands_->c.data_ptr());
  call.c_stride = shape_.n;
  call.products = products_;
  kernel::gemm<T>(call, omp_get_max_threads());
}

void Gemm::run_blas() {
  const auto [m, n, k] = std::array{shape_.m, shape_.n, shape_.k};
  const at::Tensor &a = operands_->a, &b = operands_->b, &c = operands_->c;
  const int64_t lda = shape_.transpose_a ? m : k, ldb = shape_.transpose_b ? k : n;
  const auto ta = transposed(shape_.transpose_a), tb = transposed(shape_.transpose_b);
  if (dtype_ == Dtype::kFloat32) {
    cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1.0f, a.data_ptr<float>(), lda, b.data_ptr<float>(),
                ldb, 0.0f, c.data_ptr<float>(), n);
  } else {
    cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1.0, a.data_ptr<double>(), lda,
                b.data_ptr<double>(), ldb, 0.0, c.data_ptr<double>(), n);
  }
}

void Gemm::run() {
  if (engine_ == GemmEngine::kTorch) {
    const at::Tensor &a = operands_->a, &b = operands_->b;
    at::mm_out(operands_->c, shape_.transpose_a ? a.t() : a, shape_.transpose_b ? b.t() : b);
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
  const auto in_double = [](const at::Tensor& t, bool transpose) {
    return (transpose ? t.t() : t).to(at::kDouble).contiguous();
  };
  const at::Tensor a = in_double(operands_->a, shape_.transpose_a);
  const at::Tensor b = in_double(operands_->b, !shape_.transpose_b);  // columns of B contiguous
  const at::Tensor c = in_double(operands_->c, false);
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
    const double* x = a.data_ptr<double>() + row * shape_.k;
    const double* y = b.data_ptr<double>() + column * shape_.k;
    long double sum = 0, size = 0;
    for (int64_t i = 0; i < shape_.k; ++i) {
      const long double term = static_cast<long double>(x[i]) * y[i];
      sum += term;
      size += std::abs(term);
    }
    const double bound = static_cast<double>((static_cast<double>(shape_.k) + 2.0) * unit * size +
                                             2.0 * unit_roundoff(dtype_) * std::abs(sum));
    const double found = c.data_ptr<double>()[place];
    if (!(std::abs(found - static_cast<double>(sum)) <= bound)) {
      return fmt::format("gemm {} x {} x {} {}: element ({}, {}) is {}, not {} +- {}", shape_.m,
                         shape_.n, shape_.k, dtype_name(dtype_), row, column, found,
                         static_cast<double>(sum), bound);
    }
  }
  return "";
}

}  // namespace strait::measure
