#!/usr/bin/env bash
# Runs the commands of README.md and the examples of every tool's --help as they are printed, in a scratch
# folder; see scripts/try-readme.py --help for what is changed or left out, and why.
exec python3 "$(dirname "$0")/try-readme.py" "$@"
