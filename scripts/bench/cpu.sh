#!/usr/bin/env bash
# cpu.sh RECORDS.jsonl [CORES]: what two cores of this machine do, as records: the limits that rates are
# shares of are measured in the same run. CORES: as taskset takes them (0,1). TANDEM_ISA lowers the level.
#   decode   Llama-3.2-1B's shape over 512 and 2,048 random keys: memory's read rate
#   linear   its products of 512 and 2,048 rows, each beside oneDNN's alone
#   prefill  its prompts of 512 and 2,048 tokens, and tiny-16m's of 10,774 and 16,000
#   attention at 16,000 tokens, heads of 64 (tiny-16m) and of 128 columns, in bf16 and f32
# Runs from a checkout that was built, or from a bundle of gpu-bundle.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
for bin in "$here/../bin" "$here/../../build/bin"; do [ ! -x "$bin/pig-bench" ] || break; done
[ -x "$bin/pig-bench" ] || { echo "cpu.sh: error: pig-bench is missing; build it with scripts/quickstart.sh" >&2; exit 2; }
out=$1 cores=${2:-0,1}
[ ! -e "$out" ] || { echo "cpu.sh: error: $out already exists" >&2; exit 4; }
TANDEM_CACHE_DIR=$(mktemp -d)  # rates kept from another run are not this one's
export TANDEM_CACHE_DIR
trap 'rm -r "$TANDEM_CACHE_DIR"' EXIT

bench() {
  local tool=$1
  shift
  echo "== $tool $*" >&2
  taskset -c "$cores" "$bin/$tool" --device cpu -t 2 --no-progress --format jsonl --append -o "$out" "$@"
}
llama=synthetic:llama-3.2-1b
bench pig-bench -m $llama --phase decode -s bench.random_kv=true --sweep run.context=512,2048
bench pig-bench -m $llama --phase linear -s bench.min_runs=4 --sweep run.prefill_chunk=512,2048
bench pig-bench -m $llama --phase prefill -s bench.min_runs=4 --sweep run.context=512,2048
bench pig-bench -m tiny-16m --phase prefill -s bench.min_runs=4 --sweep run.context=10774,16000
bench pig-bench -m tiny-16m --phase attention -s run.context=16000
attention=(--family attention -s bench.context=16000 -s bench.min_time=2s)
bench kernel-bench "${attention[@]}" -s bench.n_heads=6 -s bench.n_kv_heads=2 --sweep bench.compute=bf16,f32
bench kernel-bench "${attention[@]}" -s bench.n_heads=4 -s bench.n_kv_heads=1 -s bench.head_dim=128 \
  --sweep bench.compute=bf16,f32
