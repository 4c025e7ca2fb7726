#!/usr/bin/env bash
# Runs the commands of README.md, docs/ and recipes/README.md, and the examples of every tool's --help, in scratch
# folders; see scripts/try-readme.py --help for what is changed or left out, and why.
exec python3 "$(dirname "$0")/try-readme.py" "$@"
