#!/usr/bin/env bash
# From a fresh clone to an answer: installs what is missing, builds the tools, and lets the embedded
# model tiny-16m read a long document and answer a question about it.
set -euo pipefail
. "$(dirname "$0")/common.sh"

scripts/install-deps.sh
configure
build tandem_apps

document=recipes/demo/lighthouse-logbook.txt
question='What is the special magic value for amber-anchor?'
prompt=$'\n\nQuestion: '"$question"$'\nAnswer:'
ask() { build/bin/pig-generate -m tiny-16m -f "$document" -p "$prompt" --stop $'\n' -n 32 "$@"; }
say "reading $document ($(wc -c < "$document") bytes) with sparse attention, then asking: $question"
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
ask -r pig/hybrid-tiny-16m | tee "$answer"
full=$(ask -q)
if [ "$(cat "$answer")" = "$full" ]; then
  say "full attention, reading every key, gives the same answer"
else
  say "full attention answers differently: $full"
  exit 1
fi
cat << TXT

== done. The tools are in build/bin; the same again, with full attention and a question of your own:
   build/bin/pig-generate -m tiny-16m -f $document -p \$'\\n\\nQuestion: ...?\\nAnswer:' --stop \$'\\n' -n 32
   all eight questions from one reading: --questions recipes/demo/questions.txt in place of -p
   proof that the numbers are right:     ./scripts/test.sh
TXT
