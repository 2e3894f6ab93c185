# Every outside library, found once: by this build, and by those of others through strait-config.cmake.
# Debian 12's packages suffice; see tools/setup.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(ZLIB REQUIRED)
find_package(fmt REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(hwy REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
if(STRAIT_HWLOC)
  pkg_check_modules(HWLOC IMPORTED_TARGET "hwloc>=2")
  if(NOT HWLOC_FOUND)
    message(WARNING "hwloc was not found (libhwloc-dev): built without binding of ranks to cores")
  endif()
endif()

if(STRAIT_ONEDNN)
  # Not by its own CMake files, which look for OpenCL's headers.
  find_path(STRAIT_DNNL_INCLUDE dnnl.hpp)
  find_library(STRAIT_DNNL_LIBRARY dnnl)
  if(NOT STRAIT_DNNL_INCLUDE OR NOT STRAIT_DNNL_LIBRARY)
    message(WARNING "oneDNN was not found (libdnnl-dev): built without runtime.products = \"onednn\"")
  endif()
endif()

if(STRAIT_TORCH AND STRAIT_MPI)
  find_package(MPI COMPONENTS C)
  if(NOT MPI_C_FOUND)
    message(WARNING "MPI was not found (libopenmpi-dev): built without the mpi backend")
  endif()
  find_path(GLOO_INCLUDE gloo/algorithm.h)  # only to compare with: libgloo-dev
endif()

if(STRAIT_TORCH)
  # Where no GPU can be asked, LibTorch's CMake files need a list. There is no .cu file to build for it.
  if(NOT DEFINED TORCH_CUDA_ARCH_LIST AND NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
    set(TORCH_CUDA_ARCH_LIST "8.0 9.0")
  endif()
  # CUDA 13 has no libnvToolsExt, which LibTorch 2.7's CMake files ask for unless they may take nvtx3 from the toolkit.
  set(USE_SYSTEM_NVTX ON)
  # LibTorch's CMake files look for its libraries in the system first, where another LibTorch's may lie.
  find_path(Torch_DIR TorchConfig.cmake HINTS ${CMAKE_PREFIX_PATH} $ENV{CMAKE_PREFIX_PATH}
            PATH_SUFFIXES Torch share/cmake/Torch PATHS /usr)
  if(Torch_DIR)
    list(PREPEND CMAKE_PREFIX_PATH "${Torch_DIR}/../../..")
  endif()
  find_package(Torch QUIET)
  if(NOT Torch_FOUND)
    message(FATAL_ERROR "LibTorch not found. Install libtorch-dev, point CMAKE_PREFIX_PATH at another LibTorch, "
                        "or configure with -DSTRAIT_TORCH=OFF (preset notorch).")
  endif()
  include(cuda)
  include(own_headers)
  # The OpenMP build of OpenBLAS: the pthread build, which Debian prefers, ignores per-thread limits.
  find_library(OPENBLAS_OPENMP openblas PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp NO_DEFAULT_PATH)
  if(NOT OPENBLAS_OPENMP)
    message(FATAL_ERROR "The OpenMP build of OpenBLAS was not found. Install libopenblas-openmp-dev.")
  endif()
  cmake_path(GET OPENBLAS_OPENMP PARENT_PATH OPENBLAS_DIR)
  find_path(OPENBLAS_INCLUDE cblas.h PATHS ${OPENBLAS_DIR} /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp
                                           /usr/include/${CMAKE_LIBRARY_ARCHITECTURE})
  add_library(strait_blas INTERFACE IMPORTED GLOBAL)
  target_include_directories(strait_blas SYSTEM INTERFACE ${OPENBLAS_INCLUDE})
  target_link_libraries(strait_blas INTERFACE ${OPENBLAS_OPENMP})
  # DT_RPATH, not DT_RUNPATH: LibTorch's own libblas.so.3 must be found there too.
  target_link_options(strait_blas INTERFACE "-Wl,--disable-new-dtags,-rpath,${OPENBLAS_DIR}")
endif()
