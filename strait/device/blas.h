// Which BLAS this process computes with. LibTorch and Strait must both use the OpenMP build of
// OpenBLAS: reference BLAS is fifty times slower, and the pthread build ignores the thread count of
// a rank.
#pragma once

#include <string>

namespace strait::device {

struct BlasReport {
  std::string configuration;    // as the library states it: version, kernels, threading
  std::string core;             // the kernels chosen for this processor
  std::string cblas_library;    // file that cblas_sgemm comes from
  std::string fortran_library;  // file that LibTorch's sgemm_ comes from
  bool openmp = false;
  bool openblas = false;  // both symbols come from OpenBLAS
};

/// Looks the symbols up in the running process. Cost: microseconds.
BlasReport blas_report();

/// Throws UserError, naming the libraries found, unless `report` is OpenBLAS with OpenMP
/// throughout.
void require_openblas(const BlasReport& report);

}  // namespace strait::device
