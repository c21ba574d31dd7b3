# uccl_ep._native (proxy/bindings over both libraries), uccl_ep._simulation where it is asked for, and what the wheel
# carries for run-time compilation.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
find_package(nanobind CONFIG REQUIRED)

set(bindings ${PROJECT_SOURCE_DIR}/proxy/bindings)
file(GLOB_RECURSE binding_sources CONFIGURE_DEPENDS ${bindings}/*.cpp)
list(REMOVE_ITEM binding_sources ${bindings}/simulation.cpp)
if(UCCL_EP_SYMBOLS)
  set(keep_symbols NOSTRIP)
endif()
# nanobind's headers count as system headers, so that our warnings stay about our sources.
nanobind_add_module(_native STABLE_ABI NB_STATIC NB_SUPPRESS_WARNINGS ${keep_symbols} ${binding_sources})
target_link_libraries(_native PRIVATE uccl_launch uccl_kernels_wave32 uccl_cpu_kernels)
# nanobind compiles its modules for size. That is right for bindings, and not for kernels that are instantiated in one.
set_source_files_properties(${bindings}/kernels.cpp PROPERTIES
                            COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
install(TARGETS _native LIBRARY DESTINATION uccl_ep)

if(UCCL_EP_SIMULATION)
  nanobind_add_module(_simulation STABLE_ABI NB_STATIC NB_SUPPRESS_WARNINGS ${keep_symbols} ${bindings}/simulation.cpp)
  target_link_libraries(_simulation PRIVATE uccl_simulation)
  install(TARGETS _simulation LIBRARY DESTINATION uccl_ep)
endif()

# uccl_ep/include has the repository's shape: -I include and -I include/proxy are what -I . and -I proxy are in it.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/kernels DESTINATION uccl_ep/include FILES_MATCHING PATTERN "*.h")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/proxy/wire ${PROJECT_SOURCE_DIR}/proxy/ring DESTINATION uccl_ep/include/proxy
        FILES_MATCHING PATTERN "*.h")
