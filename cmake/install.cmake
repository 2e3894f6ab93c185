# What cmake --install puts where. Others build against it with find_package(strait): docs/library.md. The components
# are the packages of package.cmake: the program, and what others build against.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/strait")

set(exported strait_settings strait_core)
set_target_properties(strait_settings PROPERTIES EXPORT_NAME settings)
set_target_properties(strait_core PROPERTIES EXPORT_NAME core)
if(TARGET strait_torch)
  set_target_properties(strait_engine PROPERTIES EXPORT_NAME engine)
  set_target_properties(strait_library PROPERTIES EXPORT_NAME library)
  set_target_properties(strait_torch PROPERTIES EXPORT_NAME torch)
  list(APPEND exported strait_engine strait_library strait_torch)
endif()
install(TARGETS strait RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT program)
if(TARGET strait_part)
  install(TARGETS strait_part LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/strait" COMPONENT program)
endif()
install(TARGETS ${exported} EXPORT strait ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
install(EXPORT strait NAMESPACE strait:: FILE strait-targets.cmake DESTINATION "${package_dir}" COMPONENT development)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/strait" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development
        FILES_MATCHING PATTERN "*.h")

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/strait-config.cmake.in" strait-config.cmake
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file(strait-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/strait-config.cmake" "${PROJECT_BINARY_DIR}/strait-config-version.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake" "${CMAKE_CURRENT_LIST_DIR}/cuda.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/own_headers.cmake"
        DESTINATION "${package_dir}" COMPONENT development)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples/embed"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/libstrait-dev/examples" COMPONENT development)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/libstrait-dev"
        RENAME copyright COMPONENT development)

# Python: what makes a chain of modules, and the peers of bench step.
install(PROGRAMS "${PROJECT_SOURCE_DIR}/tools/export_modules" DESTINATION "${CMAKE_INSTALL_BINDIR}"
        RENAME strait-export-modules COMPONENT program)
install(FILES "${PROJECT_SOURCE_DIR}/bench/peers/gpt2_torch.py" "${PROJECT_SOURCE_DIR}/bench/peers/llama_torch.py"
              "${PROJECT_SOURCE_DIR}/bench/peers/torch_step.py"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/strait/peers" COMPONENT program)
install(DIRECTORY "${CMAKE_BINARY_DIR}/share/" DESTINATION "${CMAKE_INSTALL_DATADIR}" COMPONENT program)
# In the folders that they have here, so that their links hold; of what is measured without the records.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/examples"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT program)
install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
              "${PROJECT_SOURCE_DIR}/ARCHITECTURE.md" "${PROJECT_SOURCE_DIR}/CONTRIBUTING.md"
              "${PROJECT_SOURCE_DIR}/LICENSE"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT program)
install(FILES "${PROJECT_SOURCE_DIR}/bench/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}/bench" COMPONENT program)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" RENAME copyright COMPONENT program)
