# A tree with counted words in prose, in names and over the ends of lines; those above their count
# must be reported, and counts that have fallen are written.
file(REMOVE_RECURSE ${WORK})
file(WRITE ${WORK}/README.md "The law of an outlaw, his lawn and the Laws.\n")
file(WRITE ${WORK}/lib/base/node.h
  "// There are so\n  // many of them.\nstruct NodeLaws { int node_law, flaw; };\n/// A so\n/// many.\n")
file(WRITE ${WORK}/lib/README.md "Whoever asks.\n")
file(WRITE ${WORK}/kernels/norm/norm.cu "int a;  // beside b\n")
file(WRITE ${WORK}/apps/tool.cpp "// so  many\n")
file(WRITE ${WORK}/tests/test.cpp "// law, so many, whoever\n")
file(WRITE ${WORK}/words.txt
"# A comment stays.
   1  law, laws: distribution
   0  so many: that many
   3  whoever: a noun
   1  beside: next to
")

function(expect status found wanted_status wanted)
  if(NOT status EQUAL wanted_status OR NOT found STREQUAL wanted)
    message(FATAL_ERROR "status ${status}, expected ${wanted_status}; found\n${found}expected\n${wanted}")
  endif()
endfunction()

set(call ${PYTHON} ${CHECK} ${WORK} --words ${WORK}/words.txt)
set(risen
"law, laws: 4, 3 more than the 1 allowed; instead: distribution (check-words.py --list 'law')
so many: 3, 3 more than the 0 allowed; instead: that many (check-words.py --list 'so many')
")
execute_process(COMMAND ${call} OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 1
"${risen}1 counts have fallen: lower them with check-words.py --update
5 files, 4 words, 2 findings
")

execute_process(COMMAND ${call} --list laws OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 0
"README.md:1: law
README.md:1: Laws
lib/base/node.h:3: Laws
lib/base/node.h:3: law
")

# What has risen is not written, only what has fallen.
execute_process(COMMAND ${call} --update OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 1 "${risen}5 files, 4 words, 2 findings\n")
file(READ ${WORK}/words.txt found)
expect(0 "${found}" 0
"# A comment stays.
   1  law, laws: distribution
   0  so many: that many
   1  whoever: a noun
   1  beside: next to
")

file(WRITE ${WORK}/README.md "")
file(WRITE ${WORK}/lib/base/node.h "struct NodeLaws {};\n")
file(WRITE ${WORK}/apps/tool.cpp "")
execute_process(COMMAND ${call} OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 0 "5 files, 4 words, 0 findings\n")
