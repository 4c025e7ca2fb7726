#!/usr/bin/env bash
# From a fresh clone to an answer: installs missing packages and builds pig-generate. The embedded model
# tiny-16m then answers a question about a long document, and the other tools are built.
set -euo pipefail
. "$(dirname "$0")/common.sh"

scripts/install-deps.sh
configure
say "building pig-generate first: about three and a half minutes on two cores, less with a compiler cache"
build pig-generate

document=recipes/demo/lighthouse-logbook.txt
question='What is the special magic value for amber-anchor?'
prompt=$'\n\nQuestion: '"$question"$'\nAnswer:'
ask() { build/bin/pig-generate -m tiny-16m -f "$document" -p "$prompt" --stop $'\n' -n 32 "$@"; }
say "reading $document ($(wc -c < "$document") bytes) with sparse attention to answer: $question"
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
ask -r pig/hybrid-tiny-16m | tee "$answer"
full=$(ask -q)
if [ "$(cat "$answer")" = "$full" ]; then
  say "full attention gives the same answer"
else
  say "full attention gives another answer: $full"
  exit 1
fi
say "building the other tools: about three minutes"
build tandem_apps
cat << TXT

== done: the tools are in build/bin. Your own question, with full attention:
   build/bin/pig-generate -m tiny-16m -f $document -p \$'\\n\\nQuestion: ...?\\nAnswer:' --stop \$'\\n' -n 32
   for all eight questions, replace -p with: --questions recipes/demo/questions.txt
   run the tests: ./scripts/test.sh
TXT
