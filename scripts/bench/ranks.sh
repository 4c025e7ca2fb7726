#!/usr/bin/env bash
# ranks.sh BIN OUT_FOLDER: what ranks on GPUs write and how fast they are, on a machine with two or more GPUs (with
# one, two processes share it, which proves the code paths alone). BIN has pig-generate and pig-bench.
#   texts.log      greedy f32 texts of 100 prompts on one rank and on two: equal, or the status is 1
#   ranks.jsonl    pig-bench on one GPU and on two, and the whole 8B and 70B shapes (random weights)
set -uo pipefail
bin=$(cd "$1" && pwd) out=$2
mkdir -p "$out"
cd "$out" && out=.  # records name no folder of one machine
export NCCL_NVLS_ENABLE=0  # no NVLink multicast
nccl=$(python3 -c 'import nvidia.nccl, os; print(os.path.join(list(nvidia.nccl.__path__)[0], "lib"))' 2> /dev/null)
[ -z "$nccl" ] || export LD_LIBRARY_PATH=$nccl:${LD_LIBRARY_PATH:-}
n_gpus=$(nvidia-smi -L | wc -l)
failed=0

# two ARGUMENT...: a tool on two ranks.
two() {
  local tool=$1
  shift
  if [ "$n_gpus" -ge 2 ]; then
    timeout 240 "$bin/$tool" --device cuda:0,1 "$@"
    return
  fi
  local meet
  meet=$(mktemp -u) 
  TANDEM_RANKS_SHARE_GPU=1 timeout 240 "$bin/$tool" --device cuda:0 -s run.rank=1 -s run.world_size=2 \
    -s run.rendezvous="$meet" "$@" > /dev/null &
  TANDEM_RANKS_SHARE_GPU=1 timeout 240 "$bin/$tool" --device cuda:0 -s run.rank=0 -s run.world_size=2 \
    -s run.rendezvous="$meet" "$@"
  local status=$?
  wait
  return $status
}

prompts=$out/prompts.jsonl
for i in $(seq 100); do echo "{\"prompt\": \"Entry $i of the logbook: the keeper saw $((i * 7)) sails and\"}"; done > "$prompts"
words=(-m tiny-16m --prompts "$prompts" -n 24 -s model.compute=f32 -s run.batch=20 --format jsonl)
texts() { python3 -c '
import json, sys
texts = {}
for line in sys.stdin:
    e = json.loads(line)
    if e.get("event") == "token": texts.setdefault(e["seq"], []).append(e["id"])
for s in sorted(texts): print(s, texts[s])'; }
"$bin/pig-generate" --device cuda:0 "${words[@]}" 2> "$out/one.err" | texts > "$out/one.txt"
two pig-generate "${words[@]}" 2> "$out/two.err" | texts > "$out/two.txt"
if [ -s "$out/one.txt" ] && cmp "$out/one.txt" "$out/two.txt"; then
  echo "texts of $(wc -l < "$out/one.txt") prompts: equal on one rank and on two"
else
  echo "texts differ: $(diff "$out/one.txt" "$out/two.txt" | grep -c '^<') of $(wc -l < "$out/one.txt")"
  failed=1
fi | tee "$out/texts.log"
two pig-generate -m tiny-16m -p 'The keeper of the lighthouse' -n 24 2>&1 | tee "$out/bf16.log"

# point NAME ARGUMENT...: a point on one GPU and on two.
point() {
  local name=$1
  shift
  timeout 200 "$bin/pig-bench" --device cuda:0 "$@" --append -o ranks.jsonl > "$out/$name.one.log" 2>&1 ||
    echo "$name on one GPU: status $?"
  two pig-bench "$@" --append -o ranks.jsonl > "$out/$name.two.log" 2>&1 || { echo "$name on two: status $?"; tail -3 "$out/$name.two.log"; }
}
if [ "$n_gpus" -ge 2 ]; then
  m=synthetic:llama-3.1-8b
  point decode-1 -m $m -s run.context=1024 -s run.batch=1 -s bench.phases=[decode] -s bench.random_kv=true
  point decode-96k -m $m -s run.context=98304 -s run.batch=1 -s bench.phases=[decode] -s bench.random_kv=true
  point decode-32 -m $m -s run.context=8192 -s run.batch=32 -s bench.phases=[decode] -s bench.random_kv=true
  point prefill-32k -m $m -s run.context=32768 -s run.batch=1 -s bench.phases=[prefill] -s bench.min_runs=3 -s bench.min_time=1s
  # 70.6 GB of weights a rank: where two GPUs hold them
  two pig-bench -m synthetic:llama-3.1-70b -s run.context=1024 -s run.batch=1 -s bench.phases=[decode] -s bench.random_kv=true \
    --append -o ranks.jsonl > "$out/70b.log" 2>&1 || { echo "70b on two: status $?"; tail -3 "$out/70b.log"; }
fi
exit $failed
