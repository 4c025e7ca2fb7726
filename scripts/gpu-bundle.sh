#!/usr/bin/env bash
# gpu-bundle.sh [--without-models] [--cpu-tests] [ARCHIVE.tar.xz]: packs everything that a GPU machine
# needs into one archive, on a machine that has nvcc but need not have a GPU:
#
#   here   scripts/gpu-bundle.sh tandem-gpu.tar.xz
#   there  tar xJf tandem-gpu.tar.xz && tandem-gpu/gpu-check.sh results
#          tandem-gpu/bin/pig-generate -m tiny-16m --device cuda -p "The lamp was"
#
# Inside: bin/ (tools, GPU tests, timings), lib/ (libtandem and the libraries that Ubuntu 24.04 lacks),
# share/tandem/recipes with the two embedded models, gpu-check.sh, COMMIT. The GPU machine brings an
# NVIDIA driver, libcublasLt of the same CUDA major version and a glibc no older than this machine's.
#   --without-models   leaves the models out: TANDEM_MODEL_DIR says where they are there
#   --cpu-tests        adds the tests of the CPU code, for processors that this machine lacks; they look
#                      for their data in a checkout at this one's path
set -euo pipefail
. "$(dirname "$0")/common.sh"

models=yes cpu_tests=no archive=bundle/tandem-gpu.tar.xz
for argument in "$@"; do
  case $argument in
    --without-models) models=no ;;
    --cpu-tests) cpu_tests=yes ;;
    -*) echo "gpu-bundle.sh: error: $argument: no such flag" >&2; exit 2 ;;
    *) archive=$argument ;;
  esac
done

folder=build-bundle
commit=$(git describe --always --dirty --abbrev=12 --exclude '*')
stage=$folder/stage/tandem-gpu
say "configuring $folder/ (log: $folder/configure.log)"
mkdir -p $folder
# DT_RPATH in place of RUNPATH: it also serves the libraries that our libraries need.
cmake --preset cuda-release -B $folder -DBUILD_SHARED_LIBS=ON \
  -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON "-DCMAKE_INSTALL_RPATH=\$ORIGIN/../lib;/usr/local/cuda/lib64" \
  -DCMAKE_EXE_LINKER_FLAGS="-Wl,--as-needed -Wl,--disable-new-dtags" \
  -DCMAKE_SHARED_LINKER_FLAGS="-Wl,--as-needed -Wl,--disable-new-dtags" \
  -DCMAKE_INSTALL_LIBDIR=lib > $folder/configure.log 2>&1 || { cat $folder/configure.log >&2; exit 1; }
targets=(tandem_apps tandem_gpu_checks)
[ $cpu_tests = no ] || targets+=(all)
n=$(n_jobs)
say "building with $n jobs: ${targets[*]}"
cmake --build $folder -j "$n" --target "${targets[@]}" | tail -n 1

rm -rf "$stage"
cmake --install $folder --component Runtime --prefix "$stage" > /dev/null
cp $folder/bin/{test,bench}_gpu_* "$stage/bin/"
[ $models = yes ] || rm -r "$stage/share/tandem/recipes/models"
if [ $cpu_tests = yes ]; then
  cp -n $folder/bin/* "$stage/bin/"
  echo "$PWD" > "$stage/CHECKOUT"
fi
cp scripts/gpu-check.sh "$stage/"
find "$stage/bin" "$stage/lib" -type f -exec strip --strip-unneeded {} +

# Every shared library but the C library, the compiler's and CUDA's, which the GPU machine has.
ours=("$stage"/bin/* "$stage"/lib/*)
libraries=$(ldd "${ours[@]}" | awk '/=> \// { print $3 } /not found/ { print $1 }' | sort -u |
  grep -vE '(^|/)lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s|tandem|cu[a-zA-Z]*|nv[a-zA-Z]*|nccl)\.so')
for library in $libraries; do
  case $library in
    /*) cp -L "$library" "$stage/lib/" && strip --strip-unneeded "$stage/lib/${library##*/}" ;;
    *) echo "gpu-bundle.sh: error: $library, which the tools need, is not found" >&2; exit 1 ;;
  esac
done

# newest_symbol PREFIX: the newest version of a system library that any file of the bundle asks for.
newest_symbol() {
  objdump -p "$stage"/bin/* "$stage"/lib/* | grep -oE "\b$1_[0-9.]+" | cut -d_ -f2 | sort -Vu | tail -n 1
}
is_newer() { [ "$(printf '%s\n' "$1" "$2" | sort -V | tail -n 1)" != "$2" ]; }
glibc=$(newest_symbol GLIBC)
if is_newer "$glibc" 2.39; then
  echo "gpu-bundle.sh: error: built against glibc $glibc, newer than the 2.39 of Ubuntu 24.04" >&2
  exit 1
fi
if is_newer "$(newest_symbol GLIBCXX)" 3.4.33; then
  for name in libstdc++.so.6 libgcc_s.so.1; do
    cp -L "$(g++ -print-file-name=$name)" "$stage/lib/"
  done
fi

echo "$commit" > "$stage/COMMIT"
mkdir -p "$(dirname "$archive")"
say "packing"
tar -C "$folder/stage" --sort=name --owner=0 --group=0 --numeric-owner \
  --mtime="@$(git log -1 --format=%ct)" -c tandem-gpu | xz -9 -T1 > "$archive.part"
mv "$archive.part" "$archive"
say "libraries: $(cd "$stage/lib" && echo *)"
say "$archive: $(awk -v b="$(stat -c %s "$archive")" 'BEGIN { printf "%.1f MB", b / 1e6 }'), commit $commit, needs glibc $glibc"
