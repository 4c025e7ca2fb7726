# Imported targets for the libraries without a usable CMake config; also installed, since users of a
# static tandem link them. oneDNN's own config asks for OpenCL, the others ship none on Debian 12.
if(TARGET tandem_onednn)
  return()  # found by another folder of the same project
endif()
function(tandem_find_library target package header library)
  find_path(${target}_INCLUDE ${header})
  find_library(${target}_LIBRARY ${library})
  mark_as_advanced(${target}_INCLUDE ${target}_LIBRARY)
  if(NOT ${target}_INCLUDE OR NOT ${target}_LIBRARY)
    message(FATAL_ERROR "${header} or lib${library} not found: install the Debian package ${package}")
  endif()
  if(NOT TARGET ${target})
    add_library(${target} INTERFACE IMPORTED)
    target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE})
    target_link_libraries(${target} INTERFACE ${${target}_LIBRARY})
  endif()
endfunction()

tandem_find_library(tandem_onednn libdnnl-dev oneapi/dnnl/dnnl.hpp dnnl)
# Debian's oneDNN has OpenMP's threads, GCC's. tandem gives it one and shares the work itself.
target_link_libraries(tandem_onednn INTERFACE gomp)
tandem_find_library(tandem_pcre2 libpcre2-dev pcre2.h pcre2-8)
tandem_find_library(tandem_sentencepiece libsentencepiece-dev sentencepiece_processor.h sentencepiece)
tandem_find_library(tandem_utf8proc libutf8proc-dev utf8proc.h utf8proc)
