# Dependencies come from the distribution; scripts/install-deps.sh lists the Debian packages.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)

# An imported library found by header and file name. oneDNN's own CMake config asks for OpenCL, and
# the others ship none on Debian 12.
function(tandem_find_library target package header library)
  find_path(${target}_INCLUDE ${header})
  find_library(${target}_LIBRARY ${library})
  mark_as_advanced(${target}_INCLUDE ${target}_LIBRARY)
  if(NOT ${target}_INCLUDE OR NOT ${target}_LIBRARY)
    message(FATAL_ERROR "${header} or lib${library} not found: install the Debian package ${package}")
  endif()
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${${target}_INCLUDE}>)
  target_link_libraries(${target} INTERFACE ${${target}_LIBRARY})
endfunction()

tandem_find_library(tandem_onednn libdnnl-dev oneapi/dnnl/dnnl.hpp dnnl)
tandem_find_library(tandem_pcre2 libpcre2-dev pcre2.h pcre2-8)
tandem_find_library(tandem_sentencepiece libsentencepiece-dev sentencepiece_processor.h sentencepiece)
tandem_find_library(tandem_utf8proc libutf8proc-dev utf8proc.h utf8proc)
add_library(tandem_cli11 INTERFACE)
target_link_libraries(tandem_cli11 INTERFACE $<BUILD_INTERFACE:CLI11::CLI11>)
