#!/usr/bin/env bash
# scripts/fuzz.sh RUNS|MINUTESm [TARGET...]: feeds every reader (or those named) RUNS coverage-guided
# inputs, or new ones for its share of the minutes, under AddressSanitizer and
# UndefinedBehaviorSanitizer. Builds in build-fuzz/ with clang++; corpora start from the embedded
# models and grow in build-fuzz/corpus/. Findings stay in build-fuzz/. TANDEM_JOBS limits the parallel
# compilations.
set -euo pipefail
. "$(dirname "$0")/common.sh"

[[ ${1:-} =~ ^[1-9][0-9]*m?$ ]] || { echo "usage: scripts/fuzz.sh RUNS|MINUTESm [TARGET...]" >&2; exit 2; }
amount=$1
shift

has_clang() {
  command -v clang++ > /dev/null && compgen -G '/usr/lib/llvm-*/lib/libomp.so' > /dev/null &&
    compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*' > /dev/null
}

clang=()
has_clang || clang=(clang libclang-rt-14-dev libomp-dev)  # clang 14 is Debian 12's
scripts/install-deps.sh "${clang[@]}"
has_clang || {
  echo "fuzz.sh: error: expected clang++ with libFuzzer and OpenMP, found none" >&2
  echo "  hint: install libclang-rt-N-dev and libomp-N-dev for the N of clang++ --version" >&2
  exit 6
}

say "building the fuzz targets in build-fuzz/"
mkdir -p build-fuzz
cmake -S . -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DTANDEM_CUDA=OFF -DTANDEM_FUZZ=ON -DCMAKE_CXX_FLAGS=-w -DTANDEM_SANITIZE=fuzzer-no-link,address,undefined \
  > build-fuzz/configure.log 2>&1 || { cat build-fuzz/configure.log >&2; exit 1; }
cmake --build build-fuzz -j "$(n_jobs)" --target fuzz_all

all=$(build-fuzz/bin/fuzz_corpus build-fuzz/corpus)
read -r -a targets <<< "${*:-${all//$'\n'/ }}"
case $amount in
  *m)
    seconds=$((${amount%m} * 60 / ${#targets[@]}))
    limit=(-max_total_time=$((seconds > 0 ? seconds : 1)) -seed="$(date +%s)") # other inputs each time
    ;;
  *) limit=(-runs="$amount" -seed=1) ;;
esac
failed=()
for name in "${targets[@]}"; do
  say "$name: ${limit[*]}"
  dictionary=()
  [ ! -e "tests/fuzz/fuzz_$name.dict" ] || dictionary=("-dict=tests/fuzz/fuzz_$name.dict")
  # A reader that takes 25 s or 2 GB for 8 KiB of input has failed as surely as one that crashes.
  if build-fuzz/bin/fuzz_"$name" "${limit[@]}" -max_len=8192 -timeout=25 -rss_limit_mb=2048 \
    "${dictionary[@]}" -print_final_stats=1 -artifact_prefix="build-fuzz/finding-$name-" \
    "build-fuzz/corpus/$name" 2> "build-fuzz/$name.log"; then
    grep -E 'stat::(number_of_executed_units|average_exec_per_sec)|DONE' "build-fuzz/$name.log"
  else
    tail -40 "build-fuzz/$name.log" >&2
    failed+=("$name")
  fi
done
if [ ${#failed[@]} -gt 0 ]; then
  say "findings in ${failed[*]}: build-fuzz/finding-*"
  exit 1
fi
say "no findings in ${#targets[@]} readers"
