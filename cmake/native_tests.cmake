# native_tests (all of tests/**.cpp, wave32) and native_tests_wave64 (tests/kernels again, as on an AMD processor).
set(harness ${PROJECT_SOURCE_DIR}/tests/native/main.cpp)
file(GLOB_RECURSE all_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*.cpp)
list(REMOVE_ITEM all_tests ${harness})
set(kernel_tests ${all_tests})
list(FILTER kernel_tests INCLUDE REGEX "/tests/kernels/")

# Tests of kernels need a RankContext; the bindings' builder of one depends on neither Python nor nanobind.
file(GLOB rank_tables CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/proxy/bindings/rank_tables.cpp)

function(uccl_add_native_tests name wave)
  add_executable(${name} ${harness} ${rank_tables} ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE uccl_proxy uccl_kernels_wave${wave})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
endfunction()

uccl_add_native_tests(native_tests 32 ${all_tests})
uccl_add_kernels(64)
uccl_add_native_tests(native_tests_wave64 64 ${kernel_tests})

# Micro-benchmarks, one file each, built on demand (`make bench`).
file(GLOB benchmarks CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/native/*.cpp)
foreach(source ${benchmarks})
  cmake_path(GET source STEM name)
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${name} PRIVATE uccl_proxy)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
endforeach()
