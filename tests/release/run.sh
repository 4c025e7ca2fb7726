#!/usr/bin/env bash
# run.sh BUILD
set -euo pipefail
scripts=$(realpath "$(dirname "$0")/../../scripts")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$scripts/release.sh" --build "$1" --out "$work" --fast
archive=$(echo "$work"/*.tar.xz)
"$scripts/release-check.sh" "$archive"

# finds PATTERN: release-check.sh fails with this message.
finds() {
  local out
  ! out=$("$scripts/release-check.sh" "$archive" 2>&1) || { echo "expected a failure with '$1', found none"; exit 1; }
  grep -q "$1" <<< "$out" || { printf "expected '%s', found\n%s\n" "$1" "$out"; exit 1; }
}
cp "$archive" "$work/whole"
printf x >> "$archive"
finds 'expected the sums in .*, found others'
xz -dc "$work/whole" | tar --delete --wildcards '*/lib/tandem/libfmt.so*' | xz -T0 -0 > "$archive"
(cd "$work" && sha256sum -- *.tar.xz *.deb > SHA256SUMS)
finds 'found the above \(from elsewhere\|missing\)'
