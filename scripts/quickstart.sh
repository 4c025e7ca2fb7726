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
say "reading $document ($(wc -c < "$document") bytes), then asking: $question"
build/bin/pig-generate -m tiny-16m -f "$document" -p $'\n\nQuestion: '"$question"$'\nAnswer:' \
  --stop $'\n' -n 32
cat << TXT

== done. The tools are in build/bin; the same again, with a question of your own:
   build/bin/pig-generate -m tiny-16m -f $document -p \$'\\n\\nQuestion: ...?\\nAnswer:' --stop \$'\\n' -n 32
   all eight questions from one reading: --questions recipes/demo/questions.txt in place of -p
   proof that the numbers are right:     ./scripts/test.sh
TXT
