# cpack in a build folder writes strait_*.deb: what cmake --install installs, and what that needs to run.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # packs what is built; tests are not part of it
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME strait)
set(CPACK_PACKAGE_CONTACT "The developers of Strait <strait@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains large models on computers joined by narrow links")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS libopenblas0-openmp)  # found by its folder, which dpkg-shlibdeps does not see
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin, gnuplot-nox")  # mpirun; plots of simulate and report
# What programs that use the libraries need beside it: docs/library.md.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libtorch-dev, libopenblas-dev, libopenblas-openmp-dev, libdnnl-dev, libhwy-dev, \
libtomlplusplus-dev, libcli11-dev, nlohmann-json3-dev, libfmt-dev, libpcre2-dev, libutf8proc-dev, libxxhash-dev, \
zlib1g-dev, libhwloc-dev, libopenmpi-dev, pkg-config")
include(CPack)
