# Compiler settings, all of them on targets.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_EXTENSIONS ON)  # else it asks nvcc for C++17
find_program(TANDEM_CCACHE ccache)
if(TANDEM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without these two it compiles anew whatever uses a precompiled header; ours has no __TIME__ and is
  # compiled with one set of macros.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${TANDEM_CCACHE})
endif()

# What every target of ours is compiled with. GCC 12 warns of overlapping copies inside
# std::string where there are none (GCC bug 105329): -Wno-restrict can go with GCC 13. -fPIC also in
# programs, since all that share a precompiled header must agree in it.
add_library(tandem_flags INTERFACE)
target_compile_features(tandem_flags INTERFACE cxx_std_20)
target_compile_options(tandem_flags INTERFACE
  -fPIC -Wall -Wextra -Wshadow -Wconversion -Wno-restrict -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=
  $<$<BOOL:${TANDEM_WERROR}>:-Werror>)
# GCC looks for memory to free whenever its heap has grown by some share, in large units a tenth of its time; ours end
# below 1 GB.
target_compile_options(tandem_flags INTERFACE
  $<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-heapsize=1000000>)
if(TANDEM_SANITIZE)
  target_compile_options(tandem_flags INTERFACE -fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer -g
    -fno-sanitize-recover=all)
  target_link_options(tandem_flags INTERFACE -fsanitize=${TANDEM_SANITIZE})
endif()

# Standard headers and fmt, which nearly every source includes, are precompiled once. JSON is not: its
# templates cost every unit 0.6 s even then. A source names all that it uses: TANDEM_PCH=OFF, as in the
# sanitizer presets, compiles each alone.
function(tandem_precompile target)
  if(NOT TANDEM_PCH OR NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    return()
  endif()
  if(target STREQUAL tandem_base)
    target_precompile_headers(tandem_base PRIVATE <algorithm> <array> <atomic> <cmath> <cstdint> <filesystem>
      <functional> <map> <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <string> <string_view>
      <unordered_map> <utility> <variant> <vector> <fmt/format.h>)
  else()
    target_precompile_headers(${target} REUSE_FROM tandem_base)
  endif()
endfunction()

# Sources that run once a command, not once a token: -O1 compiles them in three quarters of the time.
function(tandem_cold target)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES
    COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
endfunction()

# Include roots: lib/ for "kv/policy.h", the repository root for "kernels/...".
function(tandem_library_settings)
  set(targets tandem_base tandem_kernels_cpu tandem_core tandem_tools)
  if(TANDEM_HAS_CUDA)
    list(APPEND targets tandem_cuda)
  endif()
  foreach(target ${targets})
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_compile_features(${target} PUBLIC cxx_std_20)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tandem_flags>)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/lib>
      $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>)
  endforeach()
  target_link_libraries(tandem_base PUBLIC fmt::fmt Threads::Threads)
  set(generation tandem_base tandem_kernels_cpu tandem_core)
  if(TANDEM_HAS_CUDA)
    list(APPEND generation tandem_cuda ${TANDEM_CUDA_KERNELS})
  endif()
  tandem_link(tandem_core)
  tandem_link(tandem_tools)
  tandem_archive(tandem ${generation} tandem_tools)
  # No export macro: a shared build then compiles the same objects as a static one.
  set_target_properties(tandem PROPERTIES EXPORT_NAME tandem DEFINE_SYMBOL "")
  if(NOT BUILD_SHARED_LIBS)
    add_library(tandem_generation STATIC)
    tandem_archive(tandem_generation ${generation})
  endif()
  foreach(target tandem_base tandem_core tandem_tools)
    tandem_precompile(${target})
  endforeach()
endfunction()

# The libraries that ours uses.
function(tandem_link target)
  target_link_libraries(${target}
    PUBLIC fmt::fmt Threads::Threads nlohmann_json::nlohmann_json
    PRIVATE tandem_onednn tandem_pcre2 tandem_sentencepiece tandem_utf8proc yaml-cpp
      $<BUILD_INTERFACE:CLI11::CLI11> $<BUILD_INTERFACE:tandem_eigen>)
endfunction()

# A library of the objects of others.
function(tandem_archive target)
  tandem_link(${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/lib>
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>)
  foreach(objects ${ARGN})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
  if(TANDEM_HAS_CUDA)
    target_link_libraries(${target} PRIVATE $<LINK_ONLY:CUDA::cudart_static>)
  endif()
endfunction()
