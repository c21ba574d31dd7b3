# The static libraries: `uccl_proxy` (proxy/ without bindings and simulation), per warp width `uccl_kernels_wave<N>`
# (kernels/host), `uccl_launch` (kernels/launch), `uccl_cpu_kernels` (kernels/cpu, warps of one lane) and `uccl_simulation` (proxy/simulation, which runs
# proxy and kernels).

file(GLOB_RECURSE proxy_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/proxy/*.cpp)
list(FILTER proxy_sources EXCLUDE REGEX "/proxy/(bindings|simulation)/")
add_library(uccl_proxy STATIC ${proxy_sources})
target_link_libraries(uccl_proxy PUBLIC uccl_options)
uccl_precompile(uccl_proxy)

file(GLOB_RECURSE kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cpp)
set(cpu_kernel_sources ${kernel_sources})
list(FILTER kernel_sources EXCLUDE REGEX "/kernels/(cpu|launch)/")
list(FILTER cpu_kernel_sources INCLUDE REGEX "/kernels/cpu/")

# The fiber runtime (and fiber.cpp) switches stacks, which ThreadSanitizer cannot follow: it is compiled without, and
# tells the sanitizer about fibers, barriers and launches itself (UCCL_SIMT_TSAN).
if(UCCL_EP_SANITIZE STREQUAL "thread")
  set(runtime_sources ${kernel_sources})
  list(FILTER runtime_sources INCLUDE REGEX "/kernels/host/(runtime|fiber)[^/]*\\.cpp$")
  set_source_files_properties(${runtime_sources} PROPERTIES COMPILE_OPTIONS -fno-sanitize=thread
                              COMPILE_DEFINITIONS UCCL_SIMT_TSAN)
endif()

# -ffp-contract=off: a kernel fuses a multiply-add where it says fma and nowhere else, so bytes equal the GPU's.
add_library(uccl_kernel_options INTERFACE)
target_link_libraries(uccl_kernel_options INTERFACE uccl_options)
target_compile_options(uccl_kernel_options INTERFACE -ffp-contract=off)

# Sums of rows spend their time in loops of a few instructions: where one begins must not depend on what lies before it.
set(vector_sources ${kernel_sources})
list(FILTER vector_sources INCLUDE REGEX "/kernels/host/vector_[^/]*\\.cpp$")
set_source_files_properties(${vector_sources} PROPERTIES COMPILE_OPTIONS -falign-loops=64)

# The width is the library's public definition: whoever links it instantiates kernel templates of the same width.
function(uccl_add_kernels wave)
  add_library(uccl_kernels_wave${wave} STATIC ${kernel_sources})
  target_link_libraries(uccl_kernels_wave${wave} PUBLIC uccl_kernel_options)
  target_compile_definitions(uccl_kernels_wave${wave} PUBLIC UCCL_SIMT_WARP=${wave})
endfunction()
uccl_add_kernels(32)
uccl_add_kernels(1)

# Its users may be of another width: they call functions and instantiate nothing of it.
add_library(uccl_cpu_kernels STATIC ${cpu_kernel_sources})
target_link_libraries(uccl_cpu_kernels PUBLIC uccl_kernel_options PRIVATE uccl_kernels_wave1)

# Structs are the same at every width; nothing of a kernel's code is in it.
file(GLOB launch_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/launch/*.cpp)
add_library(uccl_launch STATIC ${launch_sources})
target_link_libraries(uccl_launch PUBLIC uccl_proxy)

file(GLOB simulation_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/proxy/simulation/*.cpp)
add_library(uccl_simulation STATIC EXCLUDE_FROM_ALL ${simulation_sources})
target_link_libraries(uccl_simulation PUBLIC uccl_launch uccl_kernels_wave32)
uccl_precompile(uccl_simulation)
