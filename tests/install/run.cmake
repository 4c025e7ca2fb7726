# cmake -D BUILD=.. -D SOURCE=.. -D WORK=.. -D GENERATOR=.. -D CXX=.. [-D SANITIZE=..] -P run.cmake
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
if(SANITIZE)
  set(flags -D CMAKE_CXX_FLAGS=-fsanitize=${SANITIZE})
endif()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${CXX}
  -D CMAKE_PREFIX_PATH=${WORK}/prefix ${flags})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer ${WORK}/prefix/share/tandem/recipes/models/tiny-2m)
