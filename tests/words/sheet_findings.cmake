# A page with a function that is elsewhere, a file that is gone and a count that is wrong.
file(WRITE ${WORK}/sheets.md "2 on the CPU, 1 on a GPU
## The life of a token
| what | where |
|---|---|
| `Cache::begin` and `Cache::launch` | `kv/cache.cpp`, `kv/gone.cpp` |

| what | where |
|---|---|
| `NoSuchType` and `Engine::decode` | `decode/engine.cpp`, `kv/cache.cpp` |
## The life of a tree
| what | where |
|---|---|
| `Round::verify` | `speculate/round/round.cpp` |
## The life of a training step
| what | where |
|---|---|
| `Trainer::step` | `train/trainer.cpp` |
")
execute_process(COMMAND ${PYTHON} ${CHECK} ${WORK}/sheets.md OUTPUT_VARIABLE found
  RESULT_VARIABLE status)
set(wanted "kv/gone.cpp: no such file
`Cache::launch`: not in `kv/cache.cpp`, `kv/gone.cpp`
`NoSuchType`: not in lib
2 files in a table, the page says 1
4 rows, 4 findings
")
if(NOT status EQUAL 1 OR NOT found STREQUAL wanted)
  message(FATAL_ERROR "status ${status}; found\n${found}expected\n${wanted}")
endif()
