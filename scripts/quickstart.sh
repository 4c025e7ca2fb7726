#!/usr/bin/env bash
# From a fresh clone to an answer: installs what is missing, builds pig-generate, lets the embedded model
# tiny-16m read a long document and answer a question about it, then builds the other tools.
set -euo pipefail
. "$(dirname "$0")/common.sh"

scripts/install-deps.sh
configure
say "pig-generate first, some three minutes on two cores; what a compiler cache knows takes none"
build pig-generate

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
say "now the other tools, about as long again"
build tandem_apps
cat << TXT

== done. The tools are in build/bin; the same again, with full attention and a question of your own:
   build/bin/pig-generate -m tiny-16m -f $document -p \$'\\n\\nQuestion: ...?\\nAnswer:' --stop \$'\\n' -n 32
   all eight questions from one reading: --questions recipes/demo/questions.txt in place of -p
   proof that the numbers are right:     ./scripts/test.sh
TXT
