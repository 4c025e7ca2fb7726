#!/usr/bin/env bash
# gpu-check.sh [OUT_FOLDER] [--only tests,sanitizer,bench]: proves on a GPU machine that the GPU code is
# right, then measures it. It lies in the bundle of gpu-bundle.sh, and also runs from a checkout whose
# build-cuda-release/ or build/ holds the GPU tests (cmake --build ... --target all).
#   tests       every test_gpu_*
#   sanitizer   compute-sanitizer's memcheck and racecheck on tests of each operation with small cases
#   bench       pig-bench's list, attention alone, and the time to a first token
#   cpu-tests   if the bundle has them and --only asks for them: the tests of the CPU code
# OUT_FOLDER (gpu-check-results) gets a log a step, records as *.jsonl and summary.txt. TANDEM_MODEL_DIR
# names the folder of the embedded models where the bundle was packed without them.
# Exit status: 0, 1 if anything failed, 2 command line, 6 no GPU or no library of CUDA's.
set -uo pipefail
export LC_ALL=C

fail() {
  printf 'gpu-check.sh: error: %s\n  hint: %s\n' "$2" "$3" >&2
  exit "$1"
}

here=$(cd "$(dirname "$0")" && pwd)
out=gpu-check-results parts=tests,sanitizer,bench
while [ $# -gt 0 ]; do
  case $1 in
    --only)
      [ $# -gt 1 ] || fail 2 "--only: which part?" "tests, sanitizer, bench, cpu-tests, or several with commas"
      parts=$2
      shift
      ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) fail 2 "$1: no such flag" "gpu-check.sh [OUT_FOLDER] [--only tests,sanitizer,bench]" ;;
    *) out=$1 ;;
  esac
  shift
done
for part in ${parts//,/ }; do
  case $part in
    tests | sanitizer | bench | cpu-tests) ;;
    *) fail 2 "--only $part: no such part" "tests, sanitizer, bench, cpu-tests, or several with commas" ;;
  esac
done
wants() { case ",$parts," in *",$1,"*) ;; *) return 1 ;; esac; }

bin=
for folder in "$here/bin" "$here/../build-cuda-release/bin" "$here/../build/bin"; do
  if [ -x "$folder/test_gpu_attention" ]; then bin=$(cd "$folder" && pwd); break; fi
done
[ -n "$bin" ] || fail 2 "no GPU tests beside this script" \
  "unpack a bundle of scripts/gpu-bundle.sh and run the script in it, or build with cmake --preset cuda-release"

# CUDA's cuBLASLt: where the loader or the toolkit has it, else in a Python package.
if missing=$(ldd "$bin/pig-bench" | awk '/not found/ { print $1 }') && [ -n "$missing" ]; then
  found=$(find /usr/local/cuda*/ -name 'libcublasLt.so.*' 2> /dev/null | head -n 1)
  [ -n "$found" ] || found=$(python3 - 2> /dev/null << 'PY'
import importlib.util, pathlib
spec = importlib.util.find_spec("nvidia")
for folder in spec.submodule_search_locations if spec else []:
    for library in sorted(pathlib.Path(folder).rglob("libcublasLt.so.*")):
        print(library)
PY
  )
  found=$(head -n 1 <<< "$found")
  [ -z "$found" ] || export LD_LIBRARY_PATH="${found%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  missing=$(ldd "$bin/pig-bench" | awk '/not found/ { print $1 }' | sort -u | tr '\n' ' ')
  [ -z "$missing" ] || fail 6 "not found: $missing" \
    "install the CUDA toolkit, or put the folder of these libraries on LD_LIBRARY_PATH"
fi

# Every GPU test says why there is no GPU; with one, this lists its suites and runs nothing.
no_gpu=$("$bin/test_gpu_attention" --count 2>&1 > /dev/null) || {
  fail 6 "there is no GPU to check: ${no_gpu#skipped: }" "run this on a machine with an NVIDIA GPU and its driver"
}

mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
export OMP_WAIT_POLICY=passive TANDEM_CACHE_DIR="$out/cache"
failed=0
: > "$out/summary.txt"
note() { printf '%s\n' "$*" | tee -a "$out/summary.txt"; }
note "commit   $(cat "$here/COMMIT" 2> /dev/null || git -C "$here" describe --always --dirty --exclude '*')"
note "gpu      $(nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm --format=csv,noheader |
  paste -sd ';')"
note "host     $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)"

child=
trap '[ -z "$child" ] || kill "$child" 2> /dev/null; note "interrupted"; exit 130' INT TERM
# step NAME LIMIT COMMAND...: runs it for LIMIT seconds at most, output to OUT/NAME.log. Leaves its exit
# status in $status and how long it took in $seconds.
step() {
  local name=$1 limit=$2 start
  shift 2
  start=$(date +%s%N)
  status=0
  timeout --kill-after=5 "$limit" "$@" > "$out/$name.log" 2>&1 &
  child=$!
  wait $child || status=$?
  seconds=$(awk -v ns=$(($(date +%s%N) - start)) 'BEGIN { printf "%.1f", ns / 1e9 }')
  case $status in 124 | 137) echo "stopped after $limit s" >> "$out/$name.log" ;; esac
}
# verdict NAME DETAIL: a line of the summary; what failed shows the end of its log.
verdict() {
  local word=passed
  case $status in
    0) ;;
    77) word=skipped ;;
    124 | 137) word=TIMEOUT ;;
    *) word=FAILED ;;
  esac
  note "$(printf '%-8s %-40s %7s s  %s' "$word" "$1" "$seconds" "$2")"
  case $word in passed | skipped) return ;; esac
  failed=$((failed + 1))
  tail -n 30 "$out/$1.log" | sed 's/^/    | /'
}
# What doctest says at the end of a log: test cases and assertions that passed.
doctest_counts() {
  awk '/^\[doctest\] test cases:/ { cases = $6 } /^\[doctest\] assertions:/ { checks = $5 }
    END { if (cases != "") printf "%s cases, %s assertions", cases, checks }' "$1"
}

if wants tests; then
  note "== tests"
  for test in "$bin"/test_gpu_*; do
    name=${test##*/}
    step "$name" 180 "$test"
    [ $status -ne 77 ] || status=1  # there is a GPU
    verdict "$name" "$(doctest_counts "$out/$name.log")"
  done
fi

if wants cpu-tests; then
  note "== tests of the CPU code"
  checkout=$(cat "$here/CHECKOUT" 2> /dev/null) ||
    fail 2 "this bundle has no tests of the CPU code" "pack one with scripts/gpu-bundle.sh --cpu-tests"
  [ -d "$checkout/recipes" ] ||
    fail 2 "the tests look for their data in $checkout" "put a checkout, or a link to one, there"
  mkdir -p "$checkout/build-bundle"  # tests of the command line call the tools where the build put them
  [ -e "$checkout/build-bundle/bin" ] || ln -s "$bin" "$checkout/build-bundle/bin"
  for test in "$bin"/test_*; do
    name=${test##*/}
    case $name in
      test_gpu_*) continue ;;
      test_fuzz)  # one run a reader of untrusted files; without arguments it lists them
        for reader in $("$test" 2>&1 | tail -n +2); do
          step "fuzz-$reader" 600 "$test" "$reader"
          verdict "fuzz-$reader" ""
        done
        continue
        ;;
    esac
    step "$name" 600 "$test"
    verdict "$name" "$(doctest_counts "$out/$name.log")"
  done
fi

# sanitize TOOL TEST CASES: cases by doctest's -tc, few and small, since the tool slows them down a
# hundredfold. Errors fail; racecheck's warnings are counted: it cannot see what an mbarrier orders.
sanitize() {
  local name=$1-$2 summary
  step "$name" 60 "$sanitizer" --tool "$1" "$bin/test_gpu_$2" "-tc=$3"
  summary=$(sed -n 's/^=* *\(ERROR\|RACECHECK\) SUMMARY: //p' "$out/$name.log" | tail -n 1)
  case $summary in
    "0 errors"* | *"(0 errors,"*) ;;
    *) [ $status -ne 0 ] || status=1 ;;
  esac
  # A filter that no longer matches must not pass for a check.
  grep -q '^\[doctest\] test cases: *0 ' "$out/$name.log" && status=1
  verdict "$name" "${summary:-no summary}; $(doctest_counts "$out/$name.log")"
}
if wants sanitizer; then
  note "== compute-sanitizer"
  sanitizer=$(command -v compute-sanitizer || find /usr/local/cuda*/bin -name compute-sanitizer 2> /dev/null | head -n 1)
  if [ -z "$sanitizer" ]; then
    note "FAILED   compute-sanitizer is not installed (it is part of the CUDA toolkit)"
    failed=$((failed + 1))
  else
    for tool in memcheck racecheck; do
      sanitize $tool attention '*empty set*,*first key*,*head dimensions*'
      sanitize $tool attention_prefill '*empty set*,*first key*'
      sanitize $tool elementwise '*saturated*,*without a page*,*each operation of a graph*'
      sanitize $tool linear '*recorded in a graph*'
      sanitize $tool loading '*tails*,*rows of any type*,*copies the rows*,*copy_page*,*move_tokens*'
      sanitize $tool sample '*any temperature*,*cuts through*,*meaningless row gives*'
    done
  fi
fi

# bench NAME FLAGS...: a point of pig-bench; the summary shows its row of the table.
bench() {
  local name=bench-$1
  shift
  step "$name" 180 "$bin/pig-bench" --device cuda --no-progress --overwrite -o "$out/$name.jsonl" "$@"
  verdict "$name" ""
  awk '/^model +context/ || $1 ~ /8b$|16m$/' "$out/$name.log" | sed 's/^/    /' | tee -a "$out/summary.txt"
}
if wants bench; then
  note "== speed"
  llama=(-m synthetic:llama-3.1-8b -s bench.min_time=2s)
  bench 8b-decode-1x1024 "${llama[@]}" --phase decode -s run.batch=1 -s run.context=1024
  bench 8b-decode-1x98304 "${llama[@]}" --phase decode -s run.batch=1 -s run.context=98304 -s bench.random_kv=true
  bench 8b-decode-32x8192 "${llama[@]}" --phase decode -s run.batch=32 -s run.context=8192 -s bench.random_kv=true
  bench 8b-prefill-4096 "${llama[@]}" --phase prefill -s run.batch=1 -s run.context=4096
  bench 8b-prefill-32768 "${llama[@]}" --phase prefill -s run.batch=1 -s run.context=32768 -s bench.min_runs=5
  bench tiny-16m-decode-1x64 -m tiny-16m --phase decode -s run.batch=1 -s run.context=64
  for timing in "$bin"/bench_gpu_*; do
    [ -x "$timing" ] || continue
    name=${timing##*/}
    step "$name" 120 "$timing"
    grep '^{' "$out/$name.log" > "$out/$name.jsonl"
    verdict "$name" "$(wc -l < "$out/$name.jsonl") records"
  done

  document=
  for folder in "$here/share/tandem/recipes" "$here/../recipes"; do
    [ ! -f "$folder/demo/lighthouse-logbook.txt" ] || { document=$folder/demo/lighthouse-logbook.txt; break; }
  done
  step first-token 60 "$bin/pig-generate" -m tiny-16m --device cuda -f "$document" -n 1 --format jsonl --no-progress
  grep '^{' "$out/first-token.log" > "$out/first-token.jsonl"
  verdict first-token "$(awk 'match($0, /"prompt_tokens":[0-9]+/) { n = substr($0, RSTART + 16, RLENGTH - 16) }
    /"event":"token"/ && match($0, /"t_ms":[0-9.]+/) { t = substr($0, RSTART + 7, RLENGTH - 7) }
    END { printf "tiny-16m, %d tokens: first token %.1f ms after the model was loaded", n, t }' "$out/first-token.jsonl")"
fi

note "== $([ $failed -eq 0 ] && echo "everything passed" || echo "$failed failed"); logs and records: $out"
[ $failed -eq 0 ]
