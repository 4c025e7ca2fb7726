# Decides whether the CUDA code is built (TANDEM_HAS_CUDA) and how: for the GPU machines we measure on,
# unless CMAKE_CUDA_ARCHITECTURES says otherwise. Compiling needs no GPU.
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
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
set(CMAKE_CUDA_COMPILER ${TANDEM_NVCC})
if(TANDEM_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TANDEM_CCACHE})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
message(STATUS "CUDA: ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

# Kernels, an object library beside that of the CPU. -lineinfo costs nothing at run time and lets
# profilers and compute-sanitizer name source lines. CMake 3.25 does not know that nvcc has C++20.
add_library(tandem_kernels_cuda OBJECT)
set_target_properties(tandem_kernels_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(tandem_kernels_cuda PUBLIC ${CMAKE_SOURCE_DIR}/lib ${CMAKE_SOURCE_DIR})
target_compile_options(tandem_kernels_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -lineinfo --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Wshadow
    $<$<BOOL:${TANDEM_WERROR}>:-Werror=all-warnings>>)
# Host-side sources among them (descriptors) throw Error, whose text is formatted by fmt.
target_compile_options(tandem_kernels_cuda PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-std=c++20 -Wall -Wextra>)
target_link_libraries(tandem_kernels_cuda PUBLIC CUDA::cudart_static fmt::fmt)

# Host code that includes CUDA's headers: its own object library, so that the sources of tandem_core
# compile alike with and without CUDA and a build folder may change from one to the other.
add_library(tandem_cuda OBJECT)
target_link_libraries(tandem_cuda PUBLIC CUDA::cudart_static CUDA::cublasLt fmt::fmt)
