#!/usr/bin/env bash
# scripts/nightly.sh [--fuzz-minutes N] [PART...]: what takes too long for every change. Parts, all by
# default: `address` and `thread` build in build-asan/ and build-tsan/ and run the whole suite under
# AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer; `fuzz` feeds the readers
# for N minutes in all (60); `transformers` makes the golden values of chats and tokenizers again, and compares
# tandem with transformers on all golden model folders and on quantized ones that s2ft-adapter writes; `llama_cpp` compares greedy tokens of small GGUF models with
# llama.cpp's.
# All parts run, then a summary says how they ended; exit status 1 if one has failed. TANDEM_JOBS limits
# what runs in parallel.
set -euo pipefail
. "$(dirname "$0")/common.sh"

usage() {
  echo "usage: scripts/nightly.sh [--fuzz-minutes N] [address] [thread] [fuzz] [transformers] [llama_cpp]" >&2
  exit 2
}

minutes=60
parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --fuzz-minutes)
      minutes=${2:-}
      [[ $minutes =~ ^[1-9][0-9]*$ ]] || usage
      shift
      ;;
    address | thread | fuzz | transformers | llama_cpp) parts+=("$1") ;;
    *) usage ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(address thread fuzz transformers llama_cpp)

# suite PRESET: builds everything with a sanitizer and runs all tests; the first report of a test ends it.
suite() {
  local folder=build-$1
  mkdir -p "$folder"
  rm -f "$folder/nightly.log"
  if ! cmake --preset "$1" -DTANDEM_CUDA=OFF > "$folder/configure.log" 2>&1; then
    cat "$folder/configure.log" >&2
    return 1
  fi
  cmake --build "$folder" -j "$(n_jobs)"
  # Tests take ten times as long as they do alone.
  ctest --test-dir "$folder" --output-on-failure --timeout 7200 -j "$(n_jobs)" | tee "$folder/nightly.log"
}

# Installs the pinned packages outside the repository. Set pip's own variables to take a build of torch
# without CUDA. Anything that keeps the comparison from running makes the part fail.
against_transformers() {
  local venv=${XDG_CACHE_HOME:-$HOME/.cache}/tandem/transformers folders
  folders=$(mktemp -d)
  trap 'rm -rf "$folders"' EXIT
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --requirement scripts/golden/requirements.txt
  configure -DTANDEM_CUDA=OFF
  build pig-generate s2ft-adapter
  for weights in int4 int8 fp8; do
    build/bin/s2ft-adapter -m tiny-16m --to model --weights $weights -o "$folders/tiny-16m-$weights"
  done
  "$venv/bin/python" scripts/golden/chat_templates.py --check
  "$venv/bin/python" scripts/golden/tokenizer_flags.py --check
  "$venv/bin/python" scripts/golden/tokenizer_flags.py --folders "$folders"
  "$venv/bin/python" scripts/check-transformers.py recipes/models/* tests/data/models/* "$folders"/* |
    tee build/nightly-transformers.log
}

# Does so for llama.cpp, which pip builds in about 15 minutes on two cores.
against_llama_cpp() {
  local venv=${XDG_CACHE_HOME:-$HOME/.cache}/tandem/llama-cpp
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --requirement scripts/golden/requirements.txt gguf==0.19.0 llama-cpp-python==0.3.36
  configure -DTANDEM_CUDA=OFF
  build pig-generate
  "$venv/bin/python" scripts/check-llama-cpp.py | tee build/nightly-llama-cpp.log
}

run_part() {
  case $1 in
    address) UBSAN_OPTIONS=print_stacktrace=1 suite asan ;;
    # ThreadSanitizer does not see libgomp's barriers: kernel-bench's oneDNN gets one thread.
    thread) OMP_THREAD_LIMIT=1 suite tsan ;;
    fuzz) scripts/fuzz.sh "${minutes}m" ;;
    transformers) against_transformers ;;
    llama_cpp) against_llama_cpp ;;
  esac
}

scripts/install-deps.sh
summary=()
status=0
for part in "${parts[@]}"; do
  say "$part"
  begin=$SECONDS
  set +e  # in a condition the part would go on after an error
  (set -e; run_part "$part")
  ended=$?
  set -e
  how=passed
  [ $ended -eq 0 ] || { how=FAILED; status=1; }
  counts=''
  case $part in
    address) counts=$(grep -hs 'tests passed' build-asan/nightly.log || true) ;;
    thread) counts=$(grep -hs 'tests passed' build-tsan/nightly.log || true) ;;
    transformers) counts=$(tail -n 1 build/nightly-transformers.log 2> /dev/null || true) ;;
    llama_cpp) counts="$(grep -c ' equal$' build/nightly-llama-cpp.log || true) models equal" ;;
  esac
  summary+=("$part $how after $(((SECONDS - begin) / 60)) min${counts:+: $counts}")
done
say "summary"
printf '%s\n' "${summary[@]}"
exit $status
