#!/usr/bin/env bash
# peers.sh [FLAGS]: tandem next to llama.cpp and transformers, by turns in one run, as one table; peers.sh --help lists
# the flags. The same files or shapes, lengths of prompts and threads for all. install-peers.sh installs the peers outside
# the repository. On a machine with a GPU (--device cuda) the peers are PyTorch and transformers of its Python.
#
#   peers.sh -o peers.jsonl                    # CPU: 20 minutes on two cores
#   peers.sh --device cuda -o peers.jsonl      # GPU: 6 minutes
#   peers.sh --quick --groups q4               # two minutes
#   peers.sh --from peers.jsonl                # the table again
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
for flag; do case $flag in cuda | --device=cuda | --from | --from=* | -h | --help) no_install=yes ;; esac; done
# shellcheck source=scripts/bench/install-peers.sh
[ -n "${no_install:-}" ] || . "$here/install-peers.sh"
exec python3 "$here/peers.py" "$@"
