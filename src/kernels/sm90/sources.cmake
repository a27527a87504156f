# SPDX-License-Identifier: Apache-2.0
# The Hopper kernels as one component: all .cc and .cu under this folder, and one generated file for each row of
# grouped_gemm/instances.def and each operand of few_rows/ and batch_rows/, so that instances compile in parallel.
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
template void sluice::sm90::launch_instance<sluice::sm90::GemmTile<sluice::sm90::WeightOperand::${values}>>(
    const sluice::sm90::GroupedGemmArgs&, int, sluice::sm90::Stream, bool);
template void sluice::sm90::allow_instance<sluice::sm90::GemmTile<sluice::sm90::WeightOperand::${values}>>();
")
  list(APPEND sm90_sources ${file})
endforeach()
# The product of few rows: one file per operand.
foreach(operand bf16 fp8 fp8_block mxfp8 nvfp4 mxfp4 fp8_f32 fp8_block_f32)
  set(file ${PROJECT_BINARY_DIR}/sm90/few_rows_${operand}.cu)
  file(CONFIGURE OUTPUT ${file} CONTENT
"#include \"kernels/sm90/few_rows/instance.cuh\"
template void sluice::sm90::launch_few_rows_of<sluice::sm90::WeightOperand::${operand}>(
    const sluice::sm90::FewRowsArgs&, int, sluice::sm90::Stream, bool);
template void sluice::sm90::allow_few_rows_of<sluice::sm90::WeightOperand::${operand}>();
")
  list(APPEND sm90_sources ${file})
endforeach()
# The product of a batch of rows: likewise.
foreach(operand bf16 fp8 fp8_block mxfp8 nvfp4 mxfp4 fp8_f32 fp8_block_f32)
  set(file ${PROJECT_BINARY_DIR}/sm90/batch_rows_${operand}.cu)
  file(CONFIGURE OUTPUT ${file} CONTENT
"#include \"kernels/sm90/batch_rows/instance.cuh\"
template bool sluice::sm90::launch_batch_rows_of<sluice::sm90::WeightOperand::${operand}>(
    const sluice::sm90::BatchRowsArgs&, const sluice::sm90::BatchRowsChoice&, int, sluice::sm90::Stream, bool);
template void sluice::sm90::allow_batch_rows_of<sluice::sm90::WeightOperand::${operand}>();
template int sluice::sm90::batch_clusters_of<sluice::sm90::WeightOperand::${operand}>(int, int);
")
  list(APPEND sm90_sources ${file})
endforeach()
# Both products of one token's experts: likewise.
foreach(operand bf16 fp8 fp8_block mxfp8 nvfp4 mxfp4 fp8_f32 fp8_block_f32)
  set(file ${PROJECT_BINARY_DIR}/sm90/one_token_${operand}.cu)
  file(CONFIGURE OUTPUT ${file} CONTENT
"#include \"kernels/sm90/one_token/instance.cuh\"
template void sluice::sm90::launch_one_token_of<sluice::sm90::WeightOperand::${operand}>(
    const sluice::sm90::OneTokenArgs&, int, sluice::sm90::Stream, bool, bool);
template void sluice::sm90::allow_one_token_of<sluice::sm90::WeightOperand::${operand}>();
")
  list(APPEND sm90_sources ${file})
endforeach()
list(REMOVE_ITEM sm90_sources ${sm90_plan_sources})
# What includes FlashInfer, or what stands in for it. A component of its own, since CMake limits parallel jobs per target.
file(GLOB sm90_flashinfer_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/flashinfer/*.cu)
set(sm90_flashinfer_absent ${CMAKE_CURRENT_LIST_DIR}/flashinfer/absent.cc)
list(REMOVE_ITEM sm90_sources ${sm90_flashinfer_sources} ${sm90_flashinfer_absent})
if(NOT SLUICE_WITH_FLASHINFER)
  set(sm90_flashinfer_sources ${sm90_flashinfer_absent})
endif()
sluice_component(kernels/sm90_flashinfer LIBS CUDA::cudart_static SOURCES ${sm90_flashinfer_sources})
if(SLUICE_WITH_FLASHINFER)
  set_target_properties(sluice_kernels_sm90_flashinfer PROPERTIES JOB_POOL_COMPILE flashinfer)
  set_source_files_properties(${sm90_flashinfer_sources} PROPERTIES INCLUDE_DIRECTORIES "${SLUICE_FLASHINFER_INCLUDES}")
  target_compile_options(sluice_kernels_sm90_flashinfer PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr> $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>
    $<$<COMPILE_LANGUAGE:CUDA>:-w>)
endif()
sluice_component(kernels/sm90 DEPS weights kernels/sm90_plan kernels/sm90_flashinfer LIBS CUDA::cudart_static SOURCES ${sm90_sources}
  EXCEPT ${sm90_plan_sources} ${sm90_flashinfer_absent})
target_compile_options(sluice_kernels_sm90 PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr> $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>)
