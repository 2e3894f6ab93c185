# What a LibTorch with CUDA brings, and NCCL. Without them everything else is built. Wheels of PyTorch keep
# CUDA's and NCCL's headers and libraries beside torch/, in nvidia/*; a toolkit is found at CUDAToolkit_ROOT.
set(STRAIT_HAS_CUDA OFF)
set(STRAIT_HAS_NCCL OFF)
if(STRAIT_CUDA AND TARGET torch_cuda)
  set(STRAIT_HAS_CUDA ON)
endif()

if(STRAIT_HAS_CUDA)
  file(GLOB wheel_folders "${TORCH_INSTALL_PREFIX}/../nvidia/*")
  find_path(STRAIT_CUDA_INCLUDE cuda_runtime_api.h
            HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDA_INCLUDE_DIRS} ${wheel_folders} PATH_SUFFIXES include)
  find_library(STRAIT_CUDART NAMES cudart libcudart.so.13 libcudart.so.12
               HINTS ${CUDAToolkit_LIBRARY_DIR} ${wheel_folders} PATH_SUFFIXES lib lib64)
  find_library(STRAIT_CUBLAS NAMES cublas libcublas.so.13 libcublas.so.12
               HINTS ${CUDAToolkit_LIBRARY_DIR} ${wheel_folders} PATH_SUFFIXES lib lib64)
  if(NOT STRAIT_CUDA_INCLUDE OR NOT STRAIT_CUDART OR NOT STRAIT_CUBLAS)
    message(FATAL_ERROR "LibTorch has CUDA, but CUDA's headers, libcudart or libcublas were not found. Give "
                        "CUDAToolkit_ROOT, or configure with -DSTRAIT_CUDA=OFF.")
  endif()
  add_library(strait_cuda INTERFACE IMPORTED GLOBAL)
  target_include_directories(strait_cuda SYSTEM INTERFACE ${STRAIT_CUDA_INCLUDE})
  target_link_libraries(strait_cuda INTERFACE ${STRAIT_CUDART} ${STRAIT_CUBLAS})

  find_path(STRAIT_NCCL_INCLUDE nccl.h HINTS ${wheel_folders} PATH_SUFFIXES include)
  find_library(STRAIT_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${wheel_folders} PATH_SUFFIXES lib)
  if(STRAIT_NCCL AND STRAIT_NCCL_INCLUDE AND STRAIT_NCCL_LIBRARY)
    set(STRAIT_HAS_NCCL ON)
    add_library(strait_nccl INTERFACE IMPORTED GLOBAL)
    target_include_directories(strait_nccl SYSTEM INTERFACE ${STRAIT_NCCL_INCLUDE})
    target_link_libraries(strait_nccl INTERFACE ${STRAIT_NCCL_LIBRARY} strait_cuda)
  endif()
endif()
message(STATUS "LibTorch ${Torch_VERSION}: CUDA ${STRAIT_HAS_CUDA}, NCCL ${STRAIT_HAS_NCCL}")
