# A tree with one violation of each rule: every one must be reported, and nothing else.
file(REMOVE_RECURSE ${WORK})
file(WRITE ${WORK}/lib/base/up.h "#pragma once\n#include \"io/file.h\"\n")
file(WRITE ${WORK}/lib/io/file.h "#pragma once\n#include \"base/up.h\"\n#include <vector>\n")
file(WRITE ${WORK}/lib/text/equal.cpp "#include \"recipe/load.h\"\n")
file(WRITE ${WORK}/lib/recipe/load.h "// no guard\n")
file(WRITE ${WORK}/lib/stray/a.cpp "#include \"base/up.h\"\n")
file(WRITE ${WORK}/lib/ops/typo.cpp "#include \"tensro/tensor.h\"\n")
file(WRITE ${WORK}/lib/model/direct.cpp "#include \"kernels/cpu_table.h\"\n#include \"kernels/norm/norm.h\"\n")
file(WRITE ${WORK}/kernels/norm/norm.cpp "#include \"kernels/norm/norm.h\"\n#include \"io/file.h\"\n")
string(REPEAT "int x;\n" 401 long)
file(WRITE ${WORK}/kernels/norm/norm.h "#pragma once\n${long}")
file(WRITE ${WORK}/apps/tool.cpp "#include \"recipe/load.h\"\n")

execute_process(COMMAND ${PYTHON} ${CHECK} ${WORK} OUTPUT_VARIABLE found RESULT_VARIABLE status)
set(expected
"kernels/norm/norm.cpp:2: kernels (rank 1) includes io/file.h of io (rank 1): an include may only point down
kernels/norm/norm.h:402: 402 lines, the hard limit is 400: split by responsibility
lib/base/up.h:2: base (rank 0) includes io/file.h of io (rank 1): an include may only point down
lib/model/direct.cpp:1: kernels/cpu_table.h is for ops, which calls kernels for the rest of lib: call a function of ops
lib/ops/typo.cpp:1: \"tensro/tensor.h\" is found under neither lib/ nor kernels/: name it from an include root
lib/recipe/load.h:1: header without #pragma once
lib/stray/a.cpp:1: module 'stray' has no rank: add it to RANK in scripts/check-includes.py
lib/text/equal.cpp:1: text (rank 2) includes recipe/load.h of recipe (rank 2): an include may only point down
10 files, 8 findings
")
if(NOT status EQUAL 1 OR NOT found STREQUAL expected)
  message(FATAL_ERROR "status ${status}, expected 1; found\n${found}expected\n${expected}")
endif()
