#!/usr/bin/env bash
# Installs missing packages, checks format, layering and words, builds everything and runs all tests.
# Arguments go to ctest. CUDA code is built if there is a CUDA compiler; its tests need a GPU and are
# skipped without one. With TANDEM_CI set, a check that cannot run fails.
set -euo pipefail
. "$(dirname "$0")/common.sh"

scripts/install-deps.sh openmpi-bin python3-numpy  # tests start ranks with mpirun and try the Python module
scripts/check-format.sh || {
  status=$?
  [ $status -eq 6 ] && [ -z "${TANDEM_CI:-}" ] || exit $status  # 6: no clang-format 14
}
say "layering, words and records"
scripts/check-includes.py
scripts/check-words.py
scripts/check-records.py
if warnings_are_errors; then
  say "warnings are errors (-Werror): g++ 12"
else
  say "warnings are not errors: found g++ $(gcc_major), the code compiles without warnings with 12"
fi
cuda=AUTO
! has_nvcc || cuda=ON
configure -DTANDEM_CUDA=$cuda
build all
scripts/get-smollm2.sh > /dev/null || say "SmolLM2 cannot be fetched: its tests are skipped"
say "testing"
ctest --test-dir build --output-on-failure -j "$(n_jobs)" "$@"
