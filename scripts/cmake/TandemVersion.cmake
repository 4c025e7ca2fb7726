# One generated header: project version, git state, build. A build without git says "unknown".
find_package(Git QUIET)
set(TANDEM_GIT_COMMIT unknown)
set(TANDEM_GIT_DIRTY false)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short=12 HEAD
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed)
    set(TANDEM_GIT_COMMIT ${commit})
    execute_process(COMMAND ${GIT_EXECUTABLE} status --porcelain --untracked-files=no
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      set(TANDEM_GIT_DIRTY true)
    endif()
  endif()
endif()
configure_file(${CMAKE_SOURCE_DIR}/scripts/cmake/version.h.in ${CMAKE_BINARY_DIR}/generated/tandem_version.h)
