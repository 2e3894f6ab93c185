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
include(CPack)
