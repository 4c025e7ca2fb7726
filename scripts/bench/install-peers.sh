# shellcheck shell=bash
# Installs transformers and llama.cpp once, outside the repository; source it. Leaves the virtual environment in
# TANDEM_PEERS: the given one, or tandem/peers of XDG_CACHE_HOME or ~/.cache (8 GB; half an hour on two cores).
packages=(torch==2.9.1 transformers==5.24.0 gguf==0.19.0 llama-cpp-python==0.3.36)
export TANDEM_PEERS=${TANDEM_PEERS:-}
if [ -z "$TANDEM_PEERS" ]; then
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
      echo "${0##*/}: error: cannot install the peers" >&2
      exit 1
    fi
    echo "${packages[*]}" > "$TANDEM_PEERS/installed"
  fi
  exec 9>&-
fi
