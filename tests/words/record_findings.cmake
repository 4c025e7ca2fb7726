# Records with absolute paths in a value, a list and a key, with slashes that begin no path, and lines
# that are no JSON object.
file(REMOVE_RECURSE ${WORK})
# Put together here, so that this file names no such folder itself.
string(CONCAT root "/" "root")
string(CONCAT tmp "/" "tmp")
string(CONCAT home "/" "home")
file(WRITE ${WORK}/notes.md "${tmp}/notes are not records\n")
file(WRITE ${WORK}/a.jsonl
"{\"unit\": \"tok/s\", \"command\": \"-o out/tmp/a.jsonl -f ../data/b.txt\", \"model\": \"dir/home/x\"}
{\"command\": \"pig-bench -o ${tmp}/a.jsonl\"}
{\"recipe\": {\"paths\": [\"x=${home}/someone/model\"]}}
")
file(WRITE ${WORK}/b.jsonl "[1]\n{\"cut\": \n{\"${root}/x\": 1}\n")
execute_process(COMMAND ${PYTHON} ${CHECK} ${WORK} OUTPUT_VARIABLE found RESULT_VARIABLE status)
set(hint "names a folder of one machine: run the tool where the path can be relative")
set(wanted
"a.jsonl:2: '${tmp}/a.jsonl' ${hint}
a.jsonl:3: '${home}/someone/model' ${hint}
b.jsonl:1: expected a JSON object, found list
b.jsonl:2: expected a JSON object, found '{\"cut\": ' (Expecting value)
b.jsonl:3: '${root}/x' ${hint}
2 files, 6 records, 5 findings
")
if(NOT status EQUAL 1 OR NOT found STREQUAL wanted)
  message(FATAL_ERROR "status ${status}, expected 1; found\n${found}expected\n${wanted}")
endif()
file(WRITE ${WORK}/b.jsonl "")
file(WRITE ${WORK}/a.jsonl "{\"a\": 1}\n")
execute_process(COMMAND ${PYTHON} ${CHECK} ${WORK} OUTPUT_VARIABLE found RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR NOT found STREQUAL "2 files, 1 records, 0 findings\n")
  message(FATAL_ERROR "status ${status}, expected 0; found\n${found}")
endif()
