# SPDX-License-Identifier: Apache-2.0
# What the Hopper kernels' host code computes without CUDA: choices, shapes, sizes. A component of its own, so that its
# tests run on every machine (tests/kernels_sm90_plan).
set(sm90_plan_sources attention/plan.cc batch_rows/heuristic.cc dense/dense_call.cc dense/plan.cc few_rows/heuristic.cc
  fused_moe/plan.cc fused_moe/problem.cc grouped_gemm/heuristic.cc grouped_gemm/workspace_bound.cc mla/expanded_plan.cc
  mla/latent_plan.cc one_token/plan.cc)
list(TRANSFORM sm90_plan_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
sluice_component(kernels/sm90_plan DEPS weights SOURCES ${sm90_plan_sources})
