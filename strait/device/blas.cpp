#include "strait/device/blas.h"

#include <cblas.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "strait/base/errors.h"

namespace strait::device {
namespace {

std::string library_of(const void* symbol) {
  Dl_info information{};
  if (symbol == nullptr || dladdr(symbol, &information) == 0) return "(not found)";
  return information.dli_fname;
}

bool is_openblas(const std::string& library) {
  // Debian's libblas.so.3 of package libopenblas0-openmp lies in a folder of that name.
  return library.find("openblas") != std::string::npos;
}

}  // namespace

BlasReport blas_report() {
  BlasReport report;
  report.configuration = openblas_get_config();
  report.core = openblas_get_corename();
  report.cblas_library = library_of(reinterpret_cast<const void*>(&cblas_sgemm));
  // RTLD_DEFAULT resolves as the loader does for LibTorch's undefined sgemm_.
  report.fortran_library = library_of(dlsym(RTLD_DEFAULT, "sgemm_"));
  report.openmp = openblas_get_parallel() == OPENBLAS_OPENMP;
  report.openblas = is_openblas(report.cblas_library) && is_openblas(report.fortran_library);
  return report;
}

void require_openblas(const BlasReport& report) {
  if (report.openblas && report.openmp) return;
  throw UserError(
      fmt::format("matrix products must run in the OpenMP build of OpenBLAS, but cblas_sgemm "
                  "comes from {}, LibTorch's sgemm_ from {} (configuration \"{}\"); install "
                  "libopenblas0-openmp",
                  report.cblas_library, report.fortran_library, report.configuration));
}

}  // namespace strait::device
