#!/usr/bin/env bash
# Checks that the sources are as clang-format 14, Debian 12's, writes them; other versions write
# them otherwise. With --mend writes them. Exit status 6 where that version is missing and cannot be
# installed.
set -euo pipefail
. "$(dirname "$0")/common.sh"

mend=(--dry-run -Werror)
[ "${1:-}" != --mend ] || mend=(-i)

# Prints the program's name, if it is here.
clang_format_14() {
  local name
  for name in clang-format-14 clang-format; do
    if command -v "$name" > /dev/null && "$name" --version | grep -q 'version 14\.'; then
      echo "$name"
      return
    fi
  done
  return 1
}

program=$(clang_format_14) || { scripts/install-deps.sh clang-format-14 >&2 && program=$(clang_format_14); } || {
  echo "check-format.sh: error: clang-format 14 is missing; the format was not checked" >&2
  echo "  hint: install Debian 12's clang-format-14, or LLVM 14's clang-format as clang-format-14" >&2
  exit 6
}
mapfile -d '' files < <(find apps kernels lib tests -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inl' \) -print0)
printf '%s\0' "${files[@]}" | xargs -0 -n 50 -P "$(n_jobs)" "$program" "${mend[@]}" || {
  echo "check-format.sh: error: some of ${#files[@]} sources differ from the format of $program" >&2
  echo "  hint: run scripts/check-format.sh --mend" >&2
  exit 1
}
say "format: ${#files[@]} sources are as $program writes them"
