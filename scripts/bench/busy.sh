#!/usr/bin/env bash
# busy.sh [FLAGS]: decode and prefill of three shapes on a quiet machine and beside busy processes, at default
# threads and at one thread in turn, and transformers and llama.cpp in the same run; busy.sh --help lists the
# flags. install-peers.sh installs both peers once, outside the repository (8 GB, and 6 GB of models).
#
#   busy.sh --quick --no-peers                                      # two minutes: does a busy core hurt?
#   busy.sh -o busy.jsonl --baseline OLD_BUILD                      # all, two builds by turns: an hour
#   busy.sh -o busy.jsonl --append --shapes tiny-16m --loads 1      # in pieces
#   busy.sh --from busy.jsonl                                       # the table again
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
for flag; do case $flag in --no-peers | --from | --from=* | -h | --help) no_peers=yes ;; esac; done
# shellcheck source=scripts/bench/install-peers.sh
[ -n "${no_peers:-}" ] || . "$here/install-peers.sh"
exec python3 "$here/busy.py" "$@"
