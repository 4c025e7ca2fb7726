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

# The file that get-smollm2.sh fetches; tests look for it there.
smollm2_file() { echo "${XDG_CACHE_HOME:-$HOME/.cache}/tandem/smollm2-135m-instruct-q4_1.gguf"; }

# Warnings are errors with Debian 12's compiler, g++ 12, on which the code is known to be clean.
gcc_major() { g++ -dumpversion | cut -d. -f1; }
warnings_are_errors() { [ "$(gcc_major)" = 12 ]; }

# configure [CMAKE_ARGUMENT...]: all scripts configure alike, so that none compiles again what another
# has compiled; with and without CUDA the C++ objects are the same.
configure() {
  local werror=OFF
  ! warnings_are_errors || werror=ON
  mkdir -p build
  say "configuring build/ (log: build/configure.log)"
  if ! cmake --preset cpu-release -DTANDEM_WERROR=$werror "$@" > build/configure.log 2>&1; then
    cat build/configure.log >&2
    return 1
  fi
}

# build TARGET...: compiler messages in full. Progress is a line now and then: what has just been compiled,
# and how long the rest takes if it goes on at the rate so far.
build() {
  local n awk=(awk)
  case $(awk -W version 2>&1 < /dev/null) in mawk*) awk+=(-W interactive) ;; esac  # else it waits for 4 KiB
  n=$(n_jobs)
  say "building with $n jobs: $*"
  NINJA_STATUS='[%f %t %e] ' cmake --build build -j "$n" --target "$@" | "${awk[@]}" -v every=20 '
    function minutes(s) { return s < 90 ? sprintf("%d s", s) : sprintf("%.0f min", s / 60) }
    /^\[[0-9]+ [0-9]+ [0-9.]+\] / {
      done = substr($1, 2) + 0; total = $2 + 0; s = $3 + 0
      if (s >= last + every && done < total) {
        what = $NF
        sub(/CMakeFiles\/([^\/]*\.dir\/)?/, "", what)  # lib/kv/cache.cpp.o
        sub(/\/[^\/]*$/, "", what)
        printf "   %d of %d steps in %s, about %s left; last %s\n", done, total, minutes(s),
               minutes(s / done * (total - done)), what
        fflush()
        last = s
      }
      next
    }
    { print; fflush() }'
}
