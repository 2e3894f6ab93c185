#include "strait/device/blas.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"

namespace strait::device {
namespace {

TEST(Blas, LibTorchComputesWithTheOpenMpBuildOfOpenBlas) {
  // A product first, so that LibTorch's BLAS is certainly resolved.
  const at::Tensor a = at::ones({3, 4}), b = at::ones({4, 5});
  EXPECT_EQ(at::matmul(a, b)[2][4].item<float>(), 4.0F);
  const BlasReport report = blas_report();
  EXPECT_TRUE(report.openblas) << report.cblas_library << " " << report.fortran_library;
  EXPECT_TRUE(report.openmp) << report.configuration;
  EXPECT_NE(report.configuration.find("OpenBLAS"), std::string::npos);
  EXPECT_FALSE(report.core.empty());
  EXPECT_NO_THROW(require_openblas(report));
}

TEST(Blas, RefusesReferenceBlasAndThePthreadBuild) {
  BlasReport reference = blas_report();
  reference.fortran_library = "/usr/lib/libblas.so.3";
  reference.openblas = false;
  try {
    require_openblas(reference);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("/usr/lib/libblas.so.3"), std::string::npos);
  }
  BlasReport pthread = blas_report();
  pthread.openmp = false;
  EXPECT_THROW(require_openblas(pthread), UserError);
}

}  // namespace
}  // namespace strait::device
