#include "strait/app/about.h"

#include "strait/device/blas.h"
#ifdef STRAIT_MPI
#include <mpi.h>
#endif

namespace strait::app {
namespace {

/// "Open MPI v4.1.4" of a longer description.
std::string mpi_version() {
#ifdef STRAIT_MPI
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);  // allowed before MPI_Init
  const std::string all(text, static_cast<size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
#else
  return "none";
#endif
}

std::string torch_version() {
  std::string text = STRAIT_TORCH_VERSION;
#ifdef STRAIT_CUDA
  text += ", for CUDA";
#endif
#ifdef STRAIT_NCCL
  text += " and NCCL";
#endif
  return text;
}

}  // namespace

cli::Parts library_parts() {
  return {{"LibTorch", torch_version()},
          {"MPI", mpi_version()},
          {"BLAS", device::blas_report().configuration}};
}

}  // namespace strait::app
