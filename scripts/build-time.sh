#!/usr/bin/env bash
# build-time.sh [STAGE...]: what a build from nothing costs, without a compiler cache. Builds each stage
# in turn in build-time/, removes that, and prints a line a stage: processor time (user + system, which
# other programs hardly disturb) and wall time, both from the start. Stages: answer (what quickstart.sh
# builds before it answers), tools, tests (everything without CUDA), cuda (everything with it);
# all four by default, cuda only where nvcc is.
set -euo pipefail
. "$(dirname "$0")/common.sh"

stages=("$@")
if [ ${#stages[@]} -eq 0 ]; then
  stages=(answer tools tests)
  ! has_nvcc || stages+=(cuda)
fi
for stage in "${stages[@]}"; do
  case $stage in
    answer | tools | tests | cuda) ;;
    *)
      printf 'build-time.sh: error: unknown stage %s\n  hint: answer, tools, tests, cuda\n' "$stage" >&2
      exit 2
      ;;
  esac
done

export CCACHE_DISABLE=1
folder=build-time
log=$(mktemp)
trap 'rm -rf "$folder" "$log"' EXIT
rm -rf "$folder"
cpu=0 wall=0
TIMEFORMAT='%R %U %S'
for stage in "${stages[@]}"; do
  cuda=OFF target=all
  case $stage in
    answer) target=pig-generate ;;
    tools) target=tandem_apps ;;
    cuda) cuda=ON ;;
  esac
  cmake --preset cpu-release -B "$folder" -DTANDEM_CUDA=$cuda > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
  taken=$({ time cmake --build "$folder" -j "$(n_jobs)" --target "$target" > "$log" 2>&1; } 2>&1) ||
    { cat "$log" >&2; exit 1; }
  read -r wall cpu <<< "$(awk -v w="$wall" -v c="$cpu" '{ print w + $1, c + $2 + $3 }' <<< "$taken")"
  printf '%-7s %5.0f s of processor time, %5.0f s in all with %d jobs\n' "$stage" "$cpu" "$wall" "$(n_jobs)"
done
