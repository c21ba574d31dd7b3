# native_tests (all of tests/**.cpp, wave32), native_tests_wave64 (tests/kernels again, as on an AMD processor) and
# native_tests_wave1 (throughput and low-latency kernels once more, as a CPU runs them). Only the first under a sanitizer,
# which would look at the same code twice; ThreadSanitizer's leaves out what runs in one thread.
set(harness ${PROJECT_SOURCE_DIR}/tests/native/main.cpp)
set(checks ${PROJECT_SOURCE_DIR}/tests/native/check.cpp)
file(GLOB_RECURSE all_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*.cpp)
list(REMOVE_ITEM all_tests ${harness} ${checks})
list(FILTER all_tests EXCLUDE REGEX "/tests/(rdma|gpu/ptx|providers)/")  # programs and a library of their own
if(UCCL_EP_SANITIZE STREQUAL "thread")
  # A quarter of the time, in one thread, where there is no data race to find: the simulated cluster, every interleaving.
  list(FILTER all_tests EXCLUDE REGEX "/tests/(proxy/simulation|exhaustive)/")
endif()
set(kernel_tests ${all_tests})
list(FILTER kernel_tests INCLUDE REGEX "/tests/kernels/")
list(FILTER kernel_tests EXCLUDE REGEX "/tests/kernels/cpu/")
set(one_lane_tests ${kernel_tests})
list(FILTER one_lane_tests INCLUDE REGEX "/tests/kernels/(throughput/|low_latency/|world|device/test_match)")

function(uccl_add_native_tests name wave)
  add_executable(${name} ${harness} ${checks} ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  uccl_precompile(${name})
  target_link_libraries(${name} PRIVATE uccl_launch uccl_kernels_wave${wave})
  # Tests compile in three quarters of the time at -O1, and run about as fast: what they call is in the libraries.
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} UCCL_IS_TEST ON)
endfunction()

uccl_add_native_tests(native_tests 32 ${all_tests})
target_link_libraries(native_tests PRIVATE uccl_cpu_kernels)
if(NOT UCCL_EP_SANITIZE STREQUAL "thread")
  target_link_libraries(native_tests PRIVATE uccl_simulation)
endif()
if(NOT UCCL_EP_SANITIZE)
  uccl_add_kernels(64)
  uccl_add_native_tests(native_tests_wave64 64 ${kernel_tests})
  uccl_add_native_tests(native_tests_wave1 1 ${one_lane_tests})
endif()

# Micro-benchmarks, one file each, built on demand (`make bench`).
file(GLOB benchmarks CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/native/*.cpp)
foreach(source ${benchmarks})
  cmake_path(GET source STEM name)
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${name} PRIVATE uccl_proxy)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
endforeach()
if(TARGET lane_costs)
  file(GLOB fake_fabric CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/proxy/transport/verbs/fake_verbs*.cpp)
  target_sources(lane_costs PRIVATE ${fake_fabric})
  target_include_directories(lane_costs PRIVATE ${PROJECT_SOURCE_DIR}/tests)
endif()

# Programs that tests/rdma runs on a real verbs stack, one file each, built on demand (`make test-rdma`).
file(GLOB rdma_programs CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/rdma/native/*.cpp)
set(kernel_helpers ${kernel_tests})
list(FILTER kernel_helpers EXCLUDE REGEX "/test_[^/]*$")
foreach(source ${rdma_programs})
  cmake_path(GET source STEM name)
  add_executable(rdma_${name} EXCLUDE_FROM_ALL ${source} ${checks} ${kernel_helpers})
  target_include_directories(rdma_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(rdma_${name} PRIVATE uccl_launch uccl_kernels_wave32)
  set_target_properties(rdma_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
endforeach()

# Real provider libraries over devices that are not there: the contract of the transports (`make test-providers`), and a
# library to put in front of the C library of a program that is not ours.
file(GLOB provider_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/providers/native/*.cpp)
if(provider_sources)
  set(box_sources ${provider_sources})
  list(FILTER provider_sources INCLUDE REGEX "/(cases|end|kernels|rules)\\.cpp$")
  list(REMOVE_ITEM box_sources ${provider_sources})
  set(contract_helpers ${all_tests})
  list(FILTER contract_helpers INCLUDE REGEX "/tests/proxy/transport/(contract|contract_cases|verbs/[a-eg-su-z][^/]*|verbs/fa[^/]*)\\.cpp$")
  add_library(provider_objects OBJECT EXCLUDE_FROM_ALL ${box_sources})
  add_library(provider_box MODULE EXCLUDE_FROM_ALL)
  add_executable(provider_tests EXCLUDE_FROM_ALL ${harness} ${checks} ${provider_sources} ${contract_helpers} ${kernel_helpers})
  target_link_libraries(provider_objects PRIVATE uccl_options)
  target_link_libraries(provider_box PRIVATE uccl_options provider_objects)
  target_link_libraries(provider_tests PRIVATE provider_objects uccl_launch uccl_kernels_wave32)
  foreach(target provider_objects provider_box provider_tests)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
                          LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} UCCL_IS_TEST ON)
  endforeach()
  target_link_options(provider_box PRIVATE LINKER:--no-undefined)
  # The functions that shim.cpp has of the C library's are found by libibverbs in the program.
  set_target_properties(provider_tests PROPERTIES ENABLE_EXPORTS ON)
endif()
