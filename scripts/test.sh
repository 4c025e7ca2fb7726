#!/usr/bin/env bash
# Installs what is missing, builds everything and runs all tests; arguments go to ctest. Where there is
# a CUDA compiler, the CUDA code is built too, so that it is known to compile; without a GPU its tests
# are skipped.
set -euo pipefail
. "$(dirname "$0")/common.sh"

scripts/install-deps.sh
cuda=AUTO
! has_nvcc || cuda=ON
configure -DTANDEM_CUDA=$cuda
build all
say "testing"
ctest --test-dir build --output-on-failure -j "$(n_jobs)" "$@"
