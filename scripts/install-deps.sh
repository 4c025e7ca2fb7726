#!/usr/bin/env bash
# install-deps.sh [PACKAGE...]: installs the Debian packages that tandem needs, and those named, as
# far as they are missing.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache pkg-config git ca-certificates python3 patchelf
  libcli11-dev libfmt-dev libyaml-cpp-dev nlohmann-json3-dev doctest-dev libgmp-dev
  libdnnl-dev libedit-dev libpcre2-dev libsentencepiece-dev libutf8proc-dev libeigen3-dev
  "$@"
)

fail() {
  printf 'install-deps.sh: error: %s\n  hint: %s\n' "$1" "$2" >&2
  exit 1
}

command -v apt-get > /dev/null ||
  fail "expected apt-get, found none: tandem is built and tested on Debian 12" \
    "install the equivalents of these Debian packages, then run cmake --preset cpu-release: ${packages[*]}"

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "== packages: all ${#packages[@]} are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo > /dev/null ||
    fail "packages are missing, and installing them needs root or sudo" \
      "as root: apt-get install ${missing[*]}"
  as_root=(sudo)
fi

echo "== packages: installing ${missing[*]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@"; }
apt update
apt install -y --no-install-recommends "${missing[@]}" > /dev/null ||
  fail "apt-get could not install: ${missing[*]}" "see its messages above; the packages are from Debian 12"
