# SPDX-License-Identifier: Apache-2.0
# Every header compiles alone: one object per header, which ninja repeats only when it changed. A header that its own
# source includes first has been compiled alone there (three of four have). Headers of CUDA, of one instruction set, and
# over a library that a build can do without, need flags of their own and are compiled by the files that use them.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/src/*.h ${PROJECT_SOURCE_DIR}/apps/*.h ${PROJECT_SOURCE_DIR}/include/*.h ${PROJECT_SOURCE_DIR}/include/*.hpp)
list(FILTER headers EXCLUDE REGEX "^src/(kernels/(ptx|sm90|cpu/(micro|panel))/|server/kv_events/zmq)")
set(units)
foreach(header ${headers})
  string(REGEX REPLACE "\\.(h|hpp)$" ".cc" source ${PROJECT_SOURCE_DIR}/${header})
  if(NOT SLUICE_PCH AND EXISTS ${source})
    file(STRINGS ${source} first REGEX "^#include" LIMIT_COUNT 1)
    string(REGEX REPLACE "^(src|apps)/" "" included ${header})
    if(first STREQUAL "#include \"${included}\"")
      continue()
    endif()
  endif()
  string(MAKE_C_IDENTIFIER ${header} name)
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cc)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"${PROJECT_SOURCE_DIR}/${header}\"\n")
  list(APPEND units ${unit})
endforeach()
add_library(sluice_headers OBJECT ${units})
target_include_directories(sluice_headers PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_options(sluice_headers PRIVATE -O0 -g0)
if(SLUICE_WITH_CUDA)
  target_link_libraries(sluice_headers PRIVATE CUDA::toolkit)
endif()
