#!/usr/bin/env bash
# Checks an archive of scripts/release.sh here and in bare Debian or Ubuntu roots.
set -euo pipefail
case " $* " in *" --help "* | "  ") cat << TXT
release-check.sh ARCHIVE [SUITE[=MIRROR]...]
  ARCHIVE  tandem-VERSION-linux-MACHINE-KIND.tar.xz with SHA256SUMS in its folder
  SUITE    Debian or Ubuntu release, for example bookworm or noble=MIRROR: debootstrap (as root) makes a bare root,
           where the archive is unpacked and tried, then the .deb is installed, tried and removed
Without a suite it checks here: sums, libraries, symbol versions (Debian 12 has all), every tool, the first answer
within ten seconds. Exit status: 0 all passed, 1 a check failed, 77 a root could not be made and all else passed.
TXT
exit ;; esac
fail() { printf 'release-check.sh: error: %s\n  hint: %s\n' "$1" "$2" >&2; exit 1; }
[ -f "$1" ] || fail "expected an archive, found no file $1" "scripts/release.sh makes one"
archive=$(realpath "$1")
name=$(basename "$archive" .tar.xz)
deb=${archive%.tar.xz}.deb
shift
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

cd "$(dirname "$archive")"
grep -F " $name." SHA256SUMS > "$work/sums" || fail "expected sums of $name, found none in $PWD/SHA256SUMS" "run scripts/release.sh again"
sha256sum --quiet -c "$work/sums" || fail "expected the sums in $PWD/SHA256SUMS, found others" "fetch or make the archive again"
! dpkg-deb -c "$deb" | grep -v ' \./usr/' || fail "expected only files in /usr, found the above in $deb" "see CPACK_INSTALLED_DIRECTORIES in release.sh"

# try.sh PREFIX HOME TOOLS: runs in the bare root too, so it is plain sh with an empty home and no variable but PATH.
cat > "$work/try.sh" << 'TXT'
set -eu
prefix=$1
export HOME="$2"
mkdir "$HOME"
begin=$(date +%s%N)
text=$(timeout 10 "$prefix/bin/pig-generate" -m tiny-16m "Once upon a time" -n 32 -q) || { echo "no answer within ten seconds" >&2; exit 1; }
end=$(date +%s%N)
[ ${#text} -gt 40 ] || { echo "expected some 32 tokens of text, found '$text'" >&2; exit 1; }
for name in $3; do
  tool=$prefix/bin/$name
  for flag in --version --help; do "$tool" $flag > /dev/null || { echo "$tool $flag failed" >&2; exit 1; }; done
  for page in bash-completion/completions/$name zsh/site-functions/_$name fish/vendor_completions.d/$name.fish man/man1/$name.1; do
    [ -s "$prefix/share/$page" ] || { echo "share/$page is missing" >&2; exit 1; }
  done
done
echo "first answer after $(((end - begin) / 1000000)) ms: $(echo "$text" | tr '\n' ' ' | cut -c 1-60)"
TXT

tar -C "$work" -xf "$archive"
prefix=$work/$name
elf=("$prefix"/bin/* "$prefix"/lib/lib*.so* "$prefix"/lib/tandem/*)
tools=$(ls "$prefix/bin")
env -i ldd "${elf[@]}" > "$work/ldd" 2>&1 || true
system='/(ld-linux-x86-64|libc|libm|libpthread|libdl|librt|libstdc\+\+|libgcc_s)\.so'
! grep 'not found' "$work/ldd" || fail "expected all libraries in the archive, found the above missing" "see lib/tandem"
if awk '$2 == "=>" { print $3 }' "$work/ldd" | sort -u | grep -Ev "$system" | grep -vF "$prefix/"; then
  fail "expected only libraries of the archive and the system, found the above from elsewhere" "see lib/tandem"
fi
# newest NAME MOST: no file needs a newer symbol than Debian 12's libraries have; those of Ubuntu 24.04 are newer.
readelf -VW "${elf[@]}" | grep -o 'Name: [A-Z]*_[0-9.]*' | cut -d ' ' -f 2 | sort -u > "$work/symbols"
newest() {
  local found
  found=$(grep "^$1_[0-9]" "$work/symbols" | cut -d_ -f2 | sort -V | tail -n 1)
  [ "$(printf '%s\n%s\n' "$found" "$2" | sort -V | tail -n 1)" = "$2" ] ||
    fail "expected at most $1_$2, found $1_$found" "make the release on Debian 12"
  echo "$name: needs $1_${found:-none}, Debian 12 has $1_$2"
}
newest GLIBC 2.36
newest GLIBCXX 3.4.30
newest CXXABI 1.3.13
env -i PATH="$PATH" sh "$work/try.sh" "$prefix" "$work/home" "$tools" > "$work/out" || fail "the archive does not run here" "see the message above"
echo "here: $(cat "$work/out")"

# in_root COMMAND...: in a bare root with its own /proc, without the caller's variables.
# shellcheck disable=SC2016
in_root() {
  unshare --mount --pid --fork env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive sh -c '
    mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" "$@"
}
files() { (cd "$root" && find . -xdev -path ./var/lib/dpkg -prune -o -path ./var/lib/apt -prune -o -path ./var/log -prune -o -path ./proc -prune -o -print | sort); }
rc=0
for suite in "$@"; do
  root=$work/root
  mirror=()
  case $suite in *=*) mirror=("${suite#*=}"); [ -e "/usr/share/debootstrap/scripts/${suite%%=*}" ] || mirror+=(gutsy) ;; esac
  suite=${suite%%=*}
  if ! debootstrap --variant=minbase "$suite" "$root" "${mirror[@]}" > "$work/log" 2>&1; then
    echo "$suite: NOT TRIED, no root could be made: $(tail -n 1 "$work/log")"
    rc=77
  else
    cp "$work/try.sh" "$root/"
    mkdir "$root/opt/tandem"
    tar -C "$root/opt/tandem" --strip-components=1 -xf "$archive"
    in_root sh /try.sh /opt/tandem /home/a "$tools" > "$work/out" || fail "$suite: the archive does not run" "see the message above"
    echo "$suite, archive: $(cat "$work/out")"
    files > "$work/before"
    cp "$deb" "$root/tmp/tandem.deb"
    in_root sh -c 'dpkg -i /tmp/tandem.deb || apt-get -fy install; rm /tmp/tandem.deb' > "$work/log" 2>&1 ||
      { cat "$work/log" >&2; fail "$suite: the package does not install" "see the messages above"; }
    in_root sh /try.sh /usr /home/b "$tools" > "$work/out" || fail "$suite: the installed package does not run" "see the message above"
    echo "$suite, package: $(cat "$work/out")"
    in_root sh -c 'rm -r /home/b; dpkg -P tandem' > "$work/log" 2>&1 || { cat "$work/log" >&2; fail "$suite: no removal" "see above"; }
    files | diff "$work/before" - || fail "$suite: expected no file of the package after dpkg -P, found the above" "see its paths"
    echo "$suite: the package leaves nothing"
  fi
  rm -rf --one-file-system "$root"
done
exit $rc
