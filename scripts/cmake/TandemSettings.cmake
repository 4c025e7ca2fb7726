# Compiler settings, all of them on targets.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_program(TANDEM_CCACHE ccache)
if(TANDEM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TANDEM_CCACHE})
endif()

# What every target of ours is compiled with. GCC 12 warns of overlapping copies inside
# std::string where there are none (GCC bug 105329): -Wno-restrict can go with GCC 13.
add_library(tandem_flags INTERFACE)
target_compile_features(tandem_flags INTERFACE cxx_std_20)
target_compile_options(tandem_flags INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-restrict -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=
  $<$<BOOL:${TANDEM_WERROR}>:-Werror>)
if(TANDEM_SANITIZE)
  target_compile_options(tandem_flags INTERFACE -fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer -g
    -fno-sanitize-recover=all)
  target_link_options(tandem_flags INTERFACE -fsanitize=${TANDEM_SANITIZE})
endif()

# Include roots: lib/ for "kv/policy.h", the repository root for "kernels/...".
function(tandem_library_settings)
  set(targets tandem_base tandem_kernels_cpu tandem_core)
  if(TANDEM_HAS_CUDA)
    list(APPEND targets tandem_cuda)
  endif()
  foreach(target ${targets})
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
    target_compile_features(${target} PUBLIC cxx_std_20)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tandem_flags>)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/lib>
      $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>)
  endforeach()
  target_link_libraries(tandem_base PUBLIC fmt::fmt OpenMP::OpenMP_CXX)
  target_link_libraries(tandem_kernels_cpu PRIVATE OpenMP::OpenMP_CXX)
  target_sources(tandem_core PRIVATE $<TARGET_OBJECTS:tandem_base> $<TARGET_OBJECTS:tandem_kernels_cpu>)
  target_link_libraries(tandem_core
    PUBLIC fmt::fmt OpenMP::OpenMP_CXX nlohmann_json::nlohmann_json
    PRIVATE tandem_onednn tandem_pcre2 tandem_sentencepiece tandem_utf8proc yaml-cpp
      $<BUILD_INTERFACE:CLI11::CLI11>)
  if(TANDEM_HAS_CUDA)
    target_link_libraries(tandem_cuda PRIVATE OpenMP::OpenMP_CXX)
    target_sources(tandem_core PRIVATE $<TARGET_OBJECTS:tandem_cuda> $<TARGET_OBJECTS:tandem_kernels_cuda>
      $<TARGET_OBJECTS:tandem_kernels_portable> $<TARGET_OBJECTS:tandem_kernels_hopper>)
    target_link_libraries(tandem_core PRIVATE $<LINK_ONLY:CUDA::cudart_static> $<LINK_ONLY:CUDA::cublasLt>)
  endif()
  # No export macro: a shared build then compiles the same objects as a static one.
  set_target_properties(tandem_core PROPERTIES OUTPUT_NAME tandem EXPORT_NAME core DEFINE_SYMBOL "")
endfunction()
