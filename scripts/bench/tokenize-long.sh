#!/usr/bin/env bash
# tokenize-long.sh [MODEL_FOLDER...]: texts of 10 MB (blanks, one letter, newlines, words, random characters):
# the seconds and the memory beyond the text that all ids of each take, and how pig-generate refuses it. Without
# folders, for the embedded tiny-16m. Runs from a checkout that was built (targets text_ids and pig-generate).
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=build/bin
for tool in text_ids pig-generate; do
  [ -x $bin/$tool ] || { echo "tokenize-long.sh: error: $bin/$tool is missing; build it with ninja -C build $tool" >&2; exit 2; }
done
[ $# -gt 0 ] || set -- recipes/models/tiny-16m
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

scripts/bench/long_texts.py "$work"

for model in "$@"; do
  echo "== $model: all ids (count, seconds, MiB beyond the text), then pig-generate's refusal"
  for text in blanks letter newlines words characters; do
    printf '%-11s %s\n' "$text" "$($bin/text_ids "$model" "$work/$text")"
    begin=${EPOCHREALTIME/./}
    refusal=$($bin/pig-generate -m "$model" -f "$work/$text" 2>&1 || true)
    printf '%-11s refused in %d ms: %s\n' "" $(((${EPOCHREALTIME/./} - begin) / 1000)) \
      "$(echo "$refusal" | sed -n "s| (in $work/.*||; s/^pig-generate: error: //p" | head -1)"
  done
done
