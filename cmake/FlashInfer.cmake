# SPDX-License-Identifier: Apache-2.0
# FlashInfer's attention kernels: headers that scripts/setup.sh fetches, with the CUTLASS and CCCL headers that its
# package holds. A build without them has attention kernels of its own only.
set(SLUICE_FLASHINFER_DIR ${PROJECT_SOURCE_DIR}/build/third-party/flashinfer-0.7.2.post1 CACHE PATH
  "headers of FlashInfer 0.7.2.post1; without them prompts are attended by slower kernels")
set(SLUICE_WITH_FLASHINFER OFF)
if(SLUICE_WITH_CUDA AND EXISTS ${SLUICE_FLASHINFER_DIR}/include/flashinfer/attention/hopper/prefill_sm90.cuh)
  set(SLUICE_WITH_FLASHINFER ON)
endif()
message(STATUS "sluice: FlashInfer's attention kernels ${SLUICE_WITH_FLASHINFER}")
# Its CCCL is newer than the toolkit's and must be found first; nvcc looks for its own in directories of -isystem.
set(SLUICE_FLASHINFER_INCLUDES ${SLUICE_FLASHINFER_DIR}/cccl/libcudacxx/include ${SLUICE_FLASHINFER_DIR}/cccl/cub
  ${SLUICE_FLASHINFER_DIR}/cccl/thrust ${SLUICE_FLASHINFER_DIR}/include ${SLUICE_FLASHINFER_DIR}/cutlass/include
  ${SLUICE_FLASHINFER_DIR}/cutlass/tools/util/include)
# One file takes up to 3.3 GB to compile: as many at a time as have room in half of the machine's memory.
cmake_host_system_information(RESULT memory QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR SLUICE_FLASHINFER_JOBS "${memory} / 7000")
if(SLUICE_FLASHINFER_JOBS LESS 1)
  set(SLUICE_FLASHINFER_JOBS 1)
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS flashinfer=${SLUICE_FLASHINFER_JOBS})
