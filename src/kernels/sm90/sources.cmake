# SPDX-License-Identifier: Apache-2.0
# The Hopper kernels as one component: all .cc and .cu under this folder, and one generated file for each row of
# grouped_gemm/instances.def, so that instances compile in parallel.
file(GLOB_RECURSE sm90_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*/*.cc ${CMAKE_CURRENT_LIST_DIR}/*/*.cu)
set(sm90_table ${CMAKE_CURRENT_LIST_DIR}/grouped_gemm/instances.def)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sm90_table})
file(STRINGS ${sm90_table} sm90_rows REGEX "^SLUICE_GEMM_INSTANCE")
foreach(row ${sm90_rows})
  string(REGEX REPLACE "^SLUICE_GEMM_INSTANCE\\((.*)\\)$" "\\1" values "${row}")
  string(REGEX REPLACE "[, ]+" "_" name "${values}")
  set(file ${PROJECT_BINARY_DIR}/sm90/${name}.cu)
  file(CONFIGURE OUTPUT ${file} CONTENT
"#include \"kernels/sm90/grouped_gemm/instance.cuh\"
template void sluice::sm90::launch_instance<sluice::sm90::GemmTile<sluice::sm90::Operand::${values}>>(
    const sluice::sm90::GroupedGemmArgs&, int, sluice::sm90::Stream, bool);
")
  list(APPEND sm90_sources ${file})
endforeach()
sluice_component(kernels/sm90 DEPS weights LIBS CUDA::cudart_static SOURCES ${sm90_sources})
target_compile_options(sluice_kernels_sm90 PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr> $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>)
