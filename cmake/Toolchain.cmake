# SPDX-License-Identifier: Apache-2.0
# Language standard, warnings, sanitizers and the optional CUDA language.
option(SLUICE_TESTS "build the tests" ON)
option(SLUICE_BENCH "build the benchmarks" ON)
option(SLUICE_PCH "precompile common headers; off where each file must name its own includes" OFF)
option(SLUICE_FUZZ "build the libFuzzer targets (clang only)" OFF)
set(SLUICE_CUDA "AUTO" CACHE STRING "build the sm_90a backend: AUTO (when nvcc is found), ON, OFF")
set(SLUICE_KV_EVENTS "AUTO" CACHE STRING "let the server publish KV events: AUTO (when zmq.h is found), ON, OFF")
set(SLUICE_SANITIZE "" CACHE STRING "sanitizers, e.g. address,undefined")
option(SLUICE_OLD_GLIBC "link libsluice.so so that it runs on glibc 2.28 and newer (the wheel)" OFF)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE)
  # Paths below the checkout count as relative, so that checkouts in different places share what is cached.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher} ${SLUICE_CCACHE})
  if(SLUICE_PCH)  # ccache's manual, "Precompiled headers": what it takes to look through one
    list(APPEND launcher CCACHE_SLOPPINESS=pch_defines,time_macros)
    add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher} ${SLUICE_CCACHE})
endif()

# Links of a hundred test programs: mold takes a tenth of the time of GNU ld.
option(SLUICE_MOLD "link with mold where it is installed" ON)
find_program(SLUICE_MOLD_PROGRAM mold)
if(SLUICE_MOLD AND SLUICE_MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wshadow> $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
                    # GCC 12 contracts a*b+c across statements by default, and only on machines with FMA.
                    # Reference and kernels must round alike on every machine; kernels write std::fma.
                    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(SLUICE_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SLUICE_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
endif()

if(NOT SLUICE_CUDA STREQUAL "OFF")
  # Where scripts/setup.sh gpu puts a compiler if the machine has none.
  find_program(SLUICE_NVCC nvcc HINTS ENV CUDACXX PATHS /usr/local/cuda/bin ${PROJECT_SOURCE_DIR}/build/cuda/nvidia/cu13/bin)
  if(SLUICE_NVCC AND NOT CMAKE_CUDA_COMPILER AND "$ENV{CUDACXX}" STREQUAL "")
    set(CMAKE_CUDA_COMPILER ${SLUICE_NVCC})
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    # CMake 3.25.1 does not know that nvcc 12+ takes -std=c++20 and drops the request silently.
    if(CMAKE_VERSION VERSION_LESS 3.25.2)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(SLUICE_WITH_CUDA ON)
  elseif(SLUICE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SLUICE_CUDA=ON but no CUDA compiler was found; run scripts/setup.sh gpu, put nvcc on PATH, or set CUDACXX")
  endif()
endif()
if(NOT SLUICE_WITH_CUDA)
  set(SLUICE_WITH_CUDA OFF)
endif()
message(STATUS "sluice: CUDA backend ${SLUICE_WITH_CUDA}, build type ${CMAKE_BUILD_TYPE}")
