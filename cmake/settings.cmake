# Language level, warnings, sanitizers and the compiler cache, for every target.
include(GNUInstallDirs)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
# Clones in any folder share what is in the cache.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=true ${CCACHE})
endif()

add_library(strait_settings INTERFACE)
target_include_directories(strait_settings INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
                                                     "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_compile_features(strait_settings INTERFACE cxx_std_20)
target_compile_options(strait_settings INTERFACE
                       "$<BUILD_INTERFACE:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-fno-math-errno>")
# Members that designated initializers leave out have their defaults. Optimised, g++ 12 finds faults in std::string and
# std::variant of its own library; `tools/check asan` looks for real ones.
target_compile_options(strait_settings INTERFACE "$<BUILD_INTERFACE:-Wno-missing-field-initializers>"
  "$<BUILD_INTERFACE:$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-array-bounds;-Wno-restrict>>")
if(STRAIT_FUZZ)
  target_compile_options(strait_settings INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(STRAIT_SANITIZE)
  target_compile_options(strait_settings INTERFACE -fsanitize=${STRAIT_SANITIZE} -fno-sanitize-recover=all
                         -fno-omit-frame-pointer -g1)
  target_link_options(strait_settings INTERFACE -fsanitize=${STRAIT_SANITIZE})
endif()

# For programs that mpirun starts.
function(strait_check_no_leaks_under_mpirun target)
  if(STRAIT_SANITIZE MATCHES "address")
    target_sources(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/sanitizers/leak_check.cpp")
  endif()
endfunction()
