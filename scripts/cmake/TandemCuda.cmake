# Decides whether the CUDA code is built (TANDEM_HAS_CUDA) and for which GPUs. Compiling needs no GPU.
# Every build holds PTX for compute_80, which the driver compiles for any GPU from Ampere on that the
# machine code does not serve.
set(TANDEM_CUDA_ARCHS 90a CACHE STRING
  "GPUs to compile machine code for, beside PTX for compute_80: of 80, 86, 89, 90a, 100, 120, separated by semicolons")
set(TANDEM_HAS_CUDA OFF)
if(NOT TANDEM_CUDA STREQUAL "OFF")
  find_program(TANDEM_NVCC nvcc HINTS /usr/local/cuda/bin)
  file(GLOB gpus /dev/nvidia[0-9]*)
  if(TANDEM_CUDA STREQUAL "ON" OR (TANDEM_NVCC AND gpus))
    set(TANDEM_HAS_CUDA ON)
  endif()
endif()
if(NOT TANDEM_HAS_CUDA)
  message(STATUS "CUDA: not built (TANDEM_CUDA=${TANDEM_CUDA})")
  return()
endif()
if(NOT TANDEM_NVCC)
  message(FATAL_ERROR "TANDEM_CUDA=ON, but there is no nvcc: install the CUDA toolkit, put nvcc on "
    "the PATH, or configure with -DTANDEM_CUDA=OFF")
endif()
set(CMAKE_CUDA_ARCHITECTURES 80-virtual)
foreach(arch ${TANDEM_CUDA_ARCHS})
  if(NOT arch MATCHES "^(80|86|89|90a|100|120)$")
    message(FATAL_ERROR "TANDEM_CUDA_ARCHS=${TANDEM_CUDA_ARCHS}: '${arch}' is none of 80, 86, 89, 90a, 100, 120")
  endif()
  list(APPEND CMAKE_CUDA_ARCHITECTURES ${arch}-real)
endforeach()
set(CMAKE_CUDA_COMPILER ${TANDEM_NVCC})
if(TANDEM_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TANDEM_CCACHE})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# Where tools find cuBLASLt, which they load when they first need it.
list(APPEND CMAKE_BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR})
message(STATUS "CUDA: ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

# Kernels, an object library beside that of the CPU. -lineinfo costs nothing at run time and lets
# profilers and compute-sanitizer name source lines. CMake 3.25 does not know that nvcc has C++20.
# tandem_kernels_hopper holds the bodies on Hopper's own instructions, which are compiled for it alone;
# tandem_kernels_portable those of the same operations for all other GPUs, which Hopper runs only where it is
# made to, from the PTX.
set(TANDEM_HAS_HOPPER OFF)
set(TANDEM_CUDA_KERNELS tandem_kernels_cuda tandem_kernels_portable)
if("90a" IN_LIST TANDEM_CUDA_ARCHS)
  set(TANDEM_HAS_HOPPER ON)
  list(APPEND TANDEM_CUDA_KERNELS tandem_kernels_hopper)
endif()
foreach(library ${TANDEM_CUDA_KERNELS})
  add_library(${library} OBJECT)
  set_target_properties(${library} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS ON)
  target_include_directories(${library} PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/lib ${CMAKE_SOURCE_DIR})
  target_compile_options(${library} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -lineinfo --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Wshadow
      $<$<BOOL:${TANDEM_WERROR}>:-Werror=all-warnings>>)
  # Host-side sources among them (descriptors) throw Error, whose text is formatted by fmt.
  target_compile_options(${library} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-std=c++20 -Wall -Wextra>)
  target_link_libraries(${library} PUBLIC CUDA::cudart_static fmt::fmt)
endforeach()
set(portable_archs ${CMAKE_CUDA_ARCHITECTURES})
list(REMOVE_ITEM portable_archs 90a-real)
set_target_properties(tandem_kernels_portable PROPERTIES CUDA_ARCHITECTURES "${portable_archs}")
if(TANDEM_HAS_HOPPER)
  set_target_properties(tandem_kernels_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real)
  target_compile_definitions(tandem_kernels_hopper PRIVATE TANDEM_GPU_BODY=hopper TANDEM_HOPPER_BODY)
endif()
target_compile_definitions(tandem_kernels_portable PRIVATE TANDEM_GPU_BODY=portable)

# Host code that includes CUDA's headers: its own object library, so that the sources of tandem_core
# compile alike with and without CUDA and a build folder may change from one to the other.
add_library(tandem_cuda OBJECT)
target_link_libraries(tandem_cuda PUBLIC CUDA::cudart_static fmt::fmt)
