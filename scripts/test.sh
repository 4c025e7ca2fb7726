#!/usr/bin/env bash
# Installs what is missing, builds everything and runs all tests; arguments go to ctest.
set -euo pipefail
. "$(dirname "$0")/common.sh"

scripts/install-deps.sh
configure
build all
say "testing"
ctest --test-dir build --output-on-failure "$@"
