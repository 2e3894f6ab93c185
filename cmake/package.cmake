# cpack in a build folder writes two Debian packages of what cmake --install installs: strait, the program with its
# documents, and libstrait-dev, the libraries with what whoever builds against them needs. tools/check_package proves them.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # packs what is built; tests are not part of it
set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_PACKAGE_NAME strait)
set(CPACK_PACKAGE_CONTACT "The developers of Strait <strait@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME strait)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "trains large models on computers joined by narrow links")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "gnuplot-nox")  # plots of simulate and report
if(STRAIT_TORCH)
  # Found by its folder, which dpkg-shlibdeps does not see.
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS libopenblas0-openmp)
endif()
if(MPI_C_FOUND)
  string(APPEND CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS ", openmpi-bin")  # mpirun
endif()

# Static libraries: their users link all that they were built with, and strait-config.cmake finds it again.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libstrait-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "programs of one's own on Strait: headers, static libraries, CMake files")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "strait, cmake, g++")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libhwy-dev, libtomlplusplus-dev, libcli11-dev, nlohmann-json3-dev, \
libfmt-dev, libpcre2-dev, libutf8proc-dev, libxxhash-dev, zlib1g-dev, pkg-config")
if(HWLOC_FOUND)
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", libhwloc-dev")
endif()
if(STRAIT_DNNL_LIBRARY)
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", libdnnl-dev")
endif()
if(MPI_C_FOUND)
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", libopenmpi-dev")
endif()
if(STRAIT_TORCH)
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", libtorch-dev, libopenblas-dev, libopenblas-openmp-dev")
endif()
include(CPack)
