# SPDX-License-Identifier: Apache-2.0
# xgrammar's C++ core as a static library, from the sources that scripts/setup.sh fetches. Its own CMakeLists.txt is not
# used: it sets -Werror, -flto and a Python package for the whole build.
set(SLUICE_XGRAMMAR_DIR ${PROJECT_SOURCE_DIR}/build/third-party/xgrammar-0.2.8 CACHE PATH
  "sources of xgrammar 0.2.8; without them constrained output is refused")
set(SLUICE_WITH_XGRAMMAR OFF)
if(EXISTS ${SLUICE_XGRAMMAR_DIR}/include/xgrammar/xgrammar.h)
  set(SLUICE_WITH_XGRAMMAR ON)
  file(GLOB xgrammar_sources ${SLUICE_XGRAMMAR_DIR}/cpp/*.cc ${SLUICE_XGRAMMAR_DIR}/cpp/support/*.cc
    ${SLUICE_XGRAMMAR_DIR}/cpp/converter_ext/*.cc)
  add_library(sluice_xgrammar STATIC ${xgrammar_sources})
  target_include_directories(sluice_xgrammar SYSTEM PUBLIC ${SLUICE_XGRAMMAR_DIR}/include
    ${SLUICE_XGRAMMAR_DIR}/3rdparty/picojson ${SLUICE_XGRAMMAR_DIR}/3rdparty/dlpack/include)
  # Its messages come to us: as it is, it prints them.
  target_compile_definitions(sluice_xgrammar PUBLIC XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
    XGRAMMAR_LOG_CUSTOMIZE=1)
  # Its warnings and its arithmetic are its authors' business; ASan stays on, since its memory is ours.
  target_compile_options(sluice_xgrammar PRIVATE -w)
  if(SLUICE_SANITIZE)
    target_compile_options(sluice_xgrammar PRIVATE -fno-sanitize=undefined)
  endif()
  set_target_properties(sluice_xgrammar PROPERTIES CXX_STANDARD 17 CXX_EXTENSIONS OFF)
endif()
message(STATUS "sluice: constrained output ${SLUICE_WITH_XGRAMMAR}")
