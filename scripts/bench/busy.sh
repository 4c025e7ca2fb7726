#!/usr/bin/env bash
# busy.sh [FLAGS]: decode and prefill of three shapes on a quiet machine and beside busy processes, at default
# threads and at one thread in turn, and transformers and llama.cpp in the same run; busy.sh --help lists the
# flags. Both peers are installed once, outside the repository: into TANDEM_PEERS's virtual environment, which
# must have them, or a new one in tandem/peers of XDG_CACHE_HOME or ~/.cache (8 GB, and
# 6 GB of models; half an hour on two cores).
#
#   busy.sh --quick --no-peers                                      # two minutes: does a busy core hurt?
#   busy.sh -o busy.jsonl --baseline OLD_BUILD                      # all, two builds by turns: an hour
#   busy.sh -o busy.jsonl --append --shapes tiny-16m --loads 1      # in pieces
#   busy.sh --from busy.jsonl                                       # the table again
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
packages=(torch==2.9.1 transformers==5.24.0 gguf==0.19.0 llama-cpp-python==0.3.36)
export TANDEM_PEERS=${TANDEM_PEERS:-}
for flag; do case $flag in --no-peers | --from | --from=* | -h | --help) no_peers=yes ;; esac; done
if [ -z "${no_peers:-}" ] && [ -z "$TANDEM_PEERS" ]; then
  TANDEM_PEERS=${XDG_CACHE_HOME:-$HOME/.cache}/tandem/peers
  mkdir -p "$TANDEM_PEERS"
  exec 9> "$TANDEM_PEERS/lock"
  flock 9
  if [ "$(cat "$TANDEM_PEERS/installed" 2> /dev/null)" != "${packages[*]}" ]; then
    echo "== installing ${packages[*]} into $TANDEM_PEERS (log: install.log there)" >&2
    # llama.cpp is compiled for this processor; neither its tools nor its pictures are of use here.
    export CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF"
    if ! { python3 -m venv "$TANDEM_PEERS" && "$TANDEM_PEERS/bin/pip" install --no-binary llama-cpp-python \
      "${packages[@]}"; } > "$TANDEM_PEERS/install.log" 2>&1; then
      tail -n 5 "$TANDEM_PEERS/install.log" >&2
      echo "busy.sh: error: cannot install the peers; measure only tandem with --no-peers" >&2
      exit 1
    fi
    echo "${packages[*]}" > "$TANDEM_PEERS/installed"
  fi
  exec 9>&-
fi
exec python3 "$here/busy.py" "$@"
