#!/usr/bin/env bash
# Makes an archive that needs no compiler, a Debian package of the same files, and SHA256SUMS.
set -euo pipefail
umask 022  # the modes of files in the archive
case " $* " in *" --help "*) cat << TXT
release.sh [--cpu | --cuda] [--build FOLDER] [--out FOLDER] [--fast]
  --cpu           without CUDA code (default)
  --cuda          with CUDA code for GPUs from Ampere on; needs nvcc, no GPU
  --build FOLDER  pack this build as it is; without it, build-release-cpu or build-release-cuda is built
  --out FOLDER    folder of the results (default: out/release)
  --fast          for tests: only pig-generate, little compression
Writes tandem-VERSION-linux-MACHINE-{cpu,cuda}.tar.xz, the same name with .deb, and SHA256SUMS of both.
scripts/release-check.sh ARCHIVE checks them.
TXT
exit ;; esac
fail() { printf 'release.sh: error: %s\n  hint: %s\n' "$1" "$2" >&2; exit 1; }
value() { [ $# -ge 2 ] || fail "expected a folder after $1, found nothing" "see release.sh --help"; realpath -m "$2"; }

kind=cpu build='' out='' xz=(-T0) deb_compression=xz tools=''
while [ $# -gt 0 ]; do
  case $1 in
    --cpu | --cuda) kind=${1#--} ;;
    --build) build=$(value "$@"); shift ;;
    --out) out=$(value "$@"); shift ;;
    --fast) xz=(-T0 -0) deb_compression=zstd tools=pig-generate ;;
    *) fail "expected a flag, found '$1'" "see release.sh --help" ;;
  esac
  shift
done
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
out=${out:-$PWD/out/release}
if [ -z "$build" ]; then
  scripts/install-deps.sh
  build=$PWD/build-release-$kind
  # One shared library for all tools: a static one would be in the archive fifteen times.
  configure -B "$build" -DTANDEM_CUDA="$([ "$kind" = cuda ] && echo ON || echo OFF)" -DBUILD_SHARED_LIBS=ON -DTANDEM_TESTS=OFF
  cmake --build "$build" -j "$(n_jobs)" --target tandem_apps tandem_c
elif [ ! -f "$build/cmake_install.cmake" ]; then
  fail "expected a build folder, found no cmake_install.cmake in $build" "configure and build it, or leave --build out"
fi
system_libraries='/(ld-linux-x86-64|libc|libm|libpthread|libdl|librt|libstdc\+\+|libgcc_s|libcuda|libnvidia[^/]*)\.so'
command -v patchelf > /dev/null || fail "expected patchelf, found none" "scripts/install-deps.sh installs it"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/tandem
say "staging $build"
cmake --install "$build" --prefix "$prefix" --component Runtime > "$work/install.log" || { cat "$work/install.log" >&2; exit 1; }
[ -z "$tools" ] || find "$prefix/bin" -type f ! -name "$tools" -delete

# Bundles what the tools load, but for the system's own libraries and the driver's. Each file finds them from where it is.
mkdir -p "$prefix/lib/tandem" "$prefix/share/doc/tandem/licences"
licence() { cp -L "/usr/share/doc/$1/copyright" "$prefix/share/doc/tandem/licences/$1"; }
ours=("$prefix"/bin/* "$prefix"/lib/lib*.so*)
LD_LIBRARY_PATH=$prefix/lib ldd "${ours[@]}" > "$work/ldd"
! grep 'not found' "$work/ldd" || fail "expected the libraries of the build, found the above missing" "scripts/install-deps.sh installs them"
awk '$2 == "=>" { print $3 }' "$work/ldd" | sort -u | { grep -Ev "$system_libraries|^$prefix/" || true; } > "$work/bundled"
while read -r library; do
  cp -L "$library" "$prefix/lib/tandem/"
  package=$(dpkg-query -S "*/$(basename "$(realpath "$library")")" | head -n 1 | cut -d: -f1)
  licence "$package"
done < "$work/bundled"
for package in libcli11-dev libeigen3-dev nlohmann-json3-dev; do licence $package; done  # compiled in
mapfile -t elf < <(printf '%s\n' "${ours[@]}" "$prefix"/lib/tandem/*)
for file in "${elf[@]}"; do
  [ ! -L "$file" ] || continue
  chmod u+w "$file"
  strip "$file"
  case $file in
    */lib/tandem/*) chmod 644 "$file"; patchelf --set-rpath "\$ORIGIN" "$file" ;;
    */lib/*) patchelf --set-rpath "\$ORIGIN:\$ORIGIN/tandem" "$file" ;;
    *) patchelf --set-rpath "\$ORIGIN/../lib:\$ORIGIN/../lib/tandem" "$file" ;;
  esac
done
kind=cpu
if readelf -SW "${ours[@]}" | grep nv_fatbin > /dev/null; then
  kind=cuda
  echo "The CUDA runtime is compiled in, under NVIDIA's CUDA Toolkit EULA: https://docs.nvidia.com/cuda/eula" \
    > "$prefix/share/doc/tandem/licences/cuda-runtime"
fi

# The version that the tools name: 0.1.0 at the clean tag v0.1.0, else with the commit and "modified".
read -r version commit modified < <("$prefix/bin/pig-generate" --version |
  sed -E 's/.*tandem ([^,]*), git ([^,)]*)(, (modified))?\).*/\1 \2 \4/')
if [ -n "$modified" ] || [ "$(git tag --points-at "$commit" "v$version" 2> /dev/null)" != "v$version" ]; then
  version+=+git$commit${modified:+.modified}
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit" 2> /dev/null || date +%s) && export SOURCE_DATE_EPOCH
find "$prefix" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
name=tandem-$version-linux-$(uname -m)-$kind

say "packing $name"
mkdir -p "$out"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mode=go-w --transform "s,^tandem,$name," \
  -c tandem | xz "${xz[@]}" > "$out/$name.tar.xz"
glibc=$(readelf -VW "${elf[@]}" | grep -o 'Name: GLIBC_[0-9.]*' | cut -d_ -f2 | sort -Vu | tail -n 1)
summary=$(sed -n 's/^ *DESCRIPTION "\(.*\)")$/\1/p' CMakeLists.txt)
cat > "$work/CPackConfig.cmake" << TXT
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tandem)
set(CPACK_PACKAGE_VERSION "$version")
set(CPACK_PACKAGE_FILE_NAME "$name")
set(CPACK_PACKAGE_DIRECTORY "$work/cpack")
set(CPACK_PACKAGE_CONTACT "the authors of tandem")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "$summary")
set(CPACK_PACKAGE_DESCRIPTION "$summary")
set(CPACK_INSTALLED_DIRECTORIES "$prefix;/usr")
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= $glibc), libstdc++6 (>= $(gcc_major)), libgcc-s1")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE $deb_compression)
set(CPACK_THREADS 0)
TXT
cpack --config "$work/CPackConfig.cmake" > "$work/cpack.log" || { cat "$work/cpack.log" >&2; exit 1; }
mv "$work/cpack/$name.deb" "$out/"
(cd "$out" && sha256sum "$name.tar.xz" "$name.deb" > SHA256SUMS && du -h "$name".* && sha256sum -c SHA256SUMS)
