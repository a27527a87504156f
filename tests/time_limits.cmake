# SPDX-License-Identifier: Apache-2.0
# Seconds after which ctest ends a test as hung. Alone on two cores no test takes a fifth of its limit; the rest is for the
# builds and tests that run beside it. Sanitizers slow a test by 3 to 6 (conformance beside another build took more than
# 300 s), so with them every limit is 4 times as long.
set(SLUICE_TIME_LIMIT 300)  # of a test that is not listed
set(SLUICE_TIME_LIMITS      # test, seconds
  conformance 900
  engine 900
  kernels_sm90 900
  model 900
  apps/models 600
  python 900
  python/wheel 900)
set(SLUICE_SANITIZED_FACTOR 4)
# Presets run two tests at a time (most take one core). These take both, measure the memory or the rate of a server, or
# build: they run alone.
set(SLUICE_ALONE engine model server/stress server/pause server/weight_update server/update_while_serving
    server/memory_release server/soak server/connections python/wheel)

# sluice_time_limit(<test>...): in the folder that adds the tests.
function(sluice_time_limit)
  foreach(test ${ARGN})
    set(seconds ${SLUICE_TIME_LIMIT})
    list(FIND SLUICE_TIME_LIMITS ${test} at)
    if(at GREATER_EQUAL 0)
      math(EXPR at "${at} + 1")
      list(GET SLUICE_TIME_LIMITS ${at} seconds)
    endif()
    if(SLUICE_SANITIZE)
      math(EXPR seconds "${seconds} * ${SLUICE_SANITIZED_FACTOR}")
    endif()
    set_tests_properties(${test} PROPERTIES TIMEOUT ${seconds})
    if(test IN_LIST SLUICE_ALONE)
      set_tests_properties(${test} PROPERTIES RUN_SERIAL ON)
    endif()
  endforeach()
endfunction()
