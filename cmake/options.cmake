# What every native target of ours is compiled with: the interface target `uccl_options`.
# Never -march=native: the wheel runs on other machines than the one that built it. Faster instructions are chosen at
# run time (kernels/host).
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT UCCL_EP_TESTS)
  set(CMAKE_BUILD_TYPE Release)  # -O3
endif()
if(NOT UCCL_EP_SANITIZE MATCHES "^(|thread|address)$")
  message(FATAL_ERROR "UCCL_EP_SANITIZE is '${UCCL_EP_SANITIZE}'; allowed: thread, address or empty")
endif()
if(UCCL_EP_SANITIZE AND NOT UCCL_EP_TESTS)
  message(FATAL_ERROR "UCCL_EP_SANITIZE is for test builds: add -DUCCL_EP_TESTS=ON")
endif()

find_package(Threads REQUIRED)
add_library(uccl_options INTERFACE)
target_include_directories(uccl_options INTERFACE ${PROJECT_SOURCE_DIR}/proxy ${PROJECT_SOURCE_DIR})
target_link_libraries(uccl_options INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
# Paths in messages (__FILE__) and debug information are relative to the repository.
target_compile_options(uccl_options INTERFACE -Wall -Wextra $<$<BOOL:${UCCL_EP_WERROR}>:-Werror>
                       -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 at -O3 sees an overlap in std::string's own operator+ (GCC bug 105651).
  target_compile_options(uccl_options INTERFACE -Wno-restrict)
  if(UCCL_EP_TESTS)
    # With the tests' precompiled header GCC forgets that such lines are the system's, and reports writes past the end
    # of a string in the string's own move (GCC bug 105329). The wheel's build keeps these warnings.
    target_compile_options(uccl_options INTERFACE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
endif()
if(UCCL_EP_TESTS AND NOT UCCL_EP_SANITIZE)
  target_compile_options(uccl_options INTERFACE $<IF:$<BOOL:$<TARGET_PROPERTY:UCCL_IS_TEST>>,-O1,-O2> -g1)
elseif(UCCL_EP_SANITIZE STREQUAL "thread")
  target_compile_options(uccl_options INTERFACE -O1 -g1 -fno-omit-frame-pointer -fsanitize=thread)
  target_link_options(uccl_options INTERFACE -fsanitize=thread)
elseif(UCCL_EP_SANITIZE STREQUAL "address")
  target_compile_options(uccl_options INTERFACE -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined
                         -fno-sanitize-recover=undefined)
  target_link_options(uccl_options INTERFACE -fsanitize=address,undefined)
endif()

# Test builds only: parsing these takes longer than compiling most files does. The module's build has none, so a file
# that forgets an #include fails there.
function(uccl_precompile target)
  if(UCCL_EP_TESTS)
    target_precompile_headers(${target} PRIVATE <algorithm> <array> <atomic> <cstring> <functional> <memory> <random>
                              <span> <sstream> <stdexcept> <string> <thread> <vector>)
  endif()
endfunction()
