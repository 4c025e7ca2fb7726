# shellcheck shell=bash
# Shared by the set-up scripts; source it. Leaves the caller in the repository root.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

say() { printf '== %s\n' "$*"; }

# Parallel compilations: TANDEM_JOBS, else one a core, and about 1.5 GB of memory each.
n_jobs() {
  [ -z "${TANDEM_JOBS:-}" ] || { echo "$TANDEM_JOBS"; return; }
  local cores kib limit
  cores=$(nproc)
  kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  [ "$limit" = max ] || [ $((limit / 1024)) -ge "$kib" ] || kib=$((limit / 1024))
  local by_memory=$((kib / 1500000))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

has_nvcc() { command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }

# configure [CMAKE_ARGUMENT...]: all scripts configure alike, so that none compiles again what another
# has compiled; with and without CUDA the C++ objects are the same. Warnings are errors with
# Debian 12's compiler, on which the code is known to be clean.
configure() {
  local werror=OFF
  [ "$(g++ -dumpversion | cut -d. -f1)" != 12 ] || werror=ON
  mkdir -p build
  say "configuring build/ (log: build/configure.log)"
  if ! cmake --preset cpu-release -DTANDEM_WERROR=$werror "$@" > build/configure.log 2>&1; then
    cat build/configure.log >&2
    return 1
  fi
}

# build TARGET...: compiler messages in full, progress as one line every tenth part.
build() {
  local n
  n=$(n_jobs)
  say "building with $n jobs: $*"
  NINJA_STATUS='[%p] ' cmake --build build -j "$n" --target "$@" | awk '
    /^\[ *[0-9]+%\]/ {
      part = int(substr($0, 2, 3) / 10)
      if (part != last) { print "   " 10 * part " %"; fflush() }
      last = part
      next
    }
    { print; fflush() }'
}
