// LibTorch, MPI and BLAS of this process, for --version.
#pragma once

#include "strait/cli/about.h"

namespace strait::app {

cli::Parts library_parts();

}  // namespace strait::app
