#!/usr/bin/env bash
# Installs what is missing, checks format, layering and words, builds everything and runs all tests;
# arguments go to ctest. Where there is a CUDA compiler, the CUDA code is built too, so that it is known
# to compile; without a GPU its tests are skipped. With TANDEM_CI set, what cannot be checked has failed.
set -euo pipefail
. "$(dirname "$0")/common.sh"

scripts/install-deps.sh openmpi-bin  # whose mpirun a test starts ranks by
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
  say "warnings are not errors: this is g++ $(gcc_major), the code is known to be clean with 12"
fi
cuda=AUTO
! has_nvcc || cuda=ON
configure -DTANDEM_CUDA=$cuda
build all
say "testing"
ctest --test-dir build --output-on-failure -j "$(n_jobs)" "$@"
