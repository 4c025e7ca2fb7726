#!/usr/bin/env bash
# ranks.sh BIN OUT_FOLDER [PART...]: what ranks on GPUs write and how fast they are, on a machine with two or more GPUs
# (with one, two processes share it, which proves the code paths alone). BIN has the tools. Parts, all by default:
#   texts    texts.log: greedy f32 texts of 100 prompts on one rank and on two, and those of every other tool, of saved states,
#            adapters and keys in host memory: equal, or the status is 1
#   train    texts.log too: losses of s2ft-train on one GPU and on two, and a rank that is killed
#   speed    ranks.jsonl: pig-bench on one GPU and on two, the whole 8B and 70B shapes (random weights)
#   spec     ranks.jsonl: magicdec-bench on two, snapkv drafts of the 8B shape (simulated acceptance)
#   steps    train.jsonl: steps of s2ft-train, the 7B shape
#   full     train.jsonl: steps of method full, whose sums hide behind the backward pass: 7B where GPUs hold it, else 1B
set -uo pipefail
bin=$(cd "$1" && pwd) out=$2 here=$(cd "$(dirname "$0")" && pwd)
shift 2
parts=" ${*:-texts train speed spec steps full} "
does() { [[ $parts == *" $1 "* ]]; }
mkdir -p "$out"
cd "$out" && out=.  # records name no folder of one machine
export NCCL_NVLS_ENABLE=0  # no NVLink multicast
nccl=$(python3 -c 'import nvidia.nccl, os; print(os.path.join(list(nvidia.nccl.__path__)[0], "lib"))' 2> /dev/null)
[ -z "$nccl" ] || export LD_LIBRARY_PATH=$nccl:${LD_LIBRARY_PATH:-}
n_gpus=$(nvidia-smi -L | wc -l)
failed=0
limit=60  # seconds of a run

# two ARGUMENT...: a tool on two ranks.
two() {
  local tool=$1
  shift
  if [ "$n_gpus" -ge 2 ]; then
    timeout $limit "$bin/$tool" --device cuda:0,1 "$@"
    return
  fi
  local meet
  meet=$(mktemp -u)
  TANDEM_RANKS_SHARE_GPU=1 timeout $limit "$bin/$tool" --device cuda:0 -s run.rank=1 -s run.world_size=2 \
    -s run.rendezvous="$meet" "$@" > /dev/null &
  TANDEM_RANKS_SHARE_GPU=1 timeout $limit "$bin/$tool" --device cuda:0 -s run.rank=0 -s run.world_size=2 \
    -s run.rendezvous="$meet" "$@"
  local status=$?
  wait
  return $status
}

say() { echo "$*" | tee -a texts.log; }

# same NAME TOOL ARGUMENT...: f32 output of one GPU and of two.
same() {
  local name=$1 tool=$2
  shift 2
  local words=("$@" -s model.compute=f32 -q)
  [ -x "$bin/$tool" ] || tool=sequoia-generate  # which reads the recipes of its siblings
  if timeout $limit "$bin/$tool" --device cuda:0 "${words[@]}" > "$name.one.txt" 2> "$name.one.err" &&
    two "$tool" "${words[@]}" > "$name.two.txt" 2> "$name.two.err" && [ -s "$name.one.txt" ] && cmp -s "$name.one.txt" "$name.two.txt"; then
    say "$name: $(wc -c < "$name.one.txt") bytes of text, equal on one GPU and on two"
  else
    say "$name: differs or fails: $(tail -n 1 "$name.two.err")"
    failed=1
  fi
}

# close NAME TOOL ARGUMENT...: the same of policies whose choices of keys change with the last bits, and of quantized weights, which
# multiply bf16: texts are equal, or part where the two tokens are as good as equally likely, by $gap. Samples of lsh, of which one
# key may weigh much, are reported and not judged.
compute=f32 gap=5e-3
close() {
  local name=$1 tool=$2
  shift 2
  local words=("$@" -s model.compute=$compute -s output.top_logprobs=5 --format jsonl -q)
  timeout $limit "$bin/$tool" --device cuda:0 "${words[@]}" > "$name.one.jsonl" 2> "$name.one.err" &&
    two "$tool" "${words[@]}" > "$name.two.jsonl" 2> "$name.two.err" &&
    python3 - "$name" "$gap" << 'EOF' | tee -a texts.log || say "$name: fails DIFFERS"
import json, sys
name, limit = sys.argv[1], float(sys.argv[2])
one, two = ([e for e in map(json.loads, open(f"{name}.{n}.jsonl")) if e.get("event") == "token"] for n in ("one", "two"))
n = next((i for i, (a, b) in enumerate(zip(one, two)) if a["id"] != b["id"]), len(one))
apart = max((abs(a["logprob"] - b["logprob"]) for a, b in zip(one[:n], two[:n])), default=0)
said = f"{name}: {n} of {len(one)} tokens equal, log-probabilities at most {apart:.1e} apart"
if n < len(one):
    gap = abs(one[n]["logprob"] - dict(one[n]["top"]).get(two[n]["id"], -99))
    said += f"; there the two tokens are {gap:.1e} apart" + ("" if gap < limit or name.startswith("lsh") else " DIFFERS")
print(said if one and len(one) == len(two) else f"{name}: fails DIFFERS")
EOF
}

lines() { for i in $(seq "$1"); do echo "{\"prompt\": \"Entry $i of the logbook: the keeper saw $((i * 7)) sails and\"${2:-}}"; done; }
records() { for i in $(seq 64); do echo "{\"instruction\": \"Count the lamps of night $i\", \"output\": \"$i lamps are lit\"}"; done; }
prompt=(-p 'The keeper of the lighthouse' -n 32)
if does texts; then
  lines 100 > prompts.jsonl
  same 100-prompts pig-generate -m tiny-16m --prompts prompts.jsonl -n 24 -s run.batch=20
  same tree sequoia-generate -r sequoia/tiny-16m --prompts prompts.jsonl -n 24 -s run.batch=20
  same chains sequoia-generate -r sequoia/tiny-16m "${prompt[@]}" -s tree.path= -s spec.gamma=auto
  same self-draft sequoia-generate -r sequoia/self-tiny-16m "${prompt[@]}"
  same nested triforce-generate -r triforce/tiny-16m "${prompt[@]}"
  for recipe in tiny griffin-tiny; do same sirius-$recipe sirius-generate -r sirius/$recipe-16m "${prompt[@]}" -s spec.verify=match; done
  document=$here/../../recipes/demo/lighthouse-logbook.txt
  [ -e "$document" ] || document=$here/share/tandem/recipes/demo/lighthouse-logbook.txt
  for cache in lsh 'lsh host gpu' hybrid 'hybrid host cpu' 'hybrid host gpu' 'hybrid host both'; do
    set -- $cache
    close "${cache// /-}" pig-generate -m tiny-16m -f "$document" -n 24 -s cache.kind=$1 -s cache.place=${2:-device} -s cache.attend=${3:-auto}
  done
  same full-host pig-generate -m tiny-16m -f "$document" -n 24 -s cache.place=host
  for weights in int4 'int4 model.group=128' int8 fp8; do
    set -- $weights
    compute=bf16 gap=0.1 close "${weights// /-}" pig-generate -m tiny-16m -f "$document" -n 24 -s model.weights=$1 ${2:+-s $2}
  done
  two pig-generate -m tiny-16m -f "$document" -n 0 -s model.compute=f32 -s output.state=two.state -q
  same state pig-generate -m tiny-16m -p ' It was' -n 24 -s model.state=two.state
  two spec-check -r sequoia/tiny-16m -s model.compute=f32 -s eval.n_prompts=4 -n 16 > spec-check.txt 2>&1 &&
    say "spec-check on two GPUs: lossless, $(grep -c pass spec-check.txt) checks" || { say "spec-check on two GPUs: $(tail -n 1 spec-check.txt)"; failed=1; }
  grep -q DIFFERS texts.log && failed=1
  two pig-generate -m tiny-16m "${prompt[@]}" > bf16.log 2>&1
  say "$(grep ranks bf16.log)"
fi

if does train; then
  records > records.jsonl
  steps=(-m tiny-16m --data records.jsonl -s model.compute=f32 -s train.steps=100 -s train.batch=8 -s train.micro_tokens=64
    -s train.max_tokens=64 -s train.save_every=20 -s train.keep_checkpoints=9 -q)
  timeout 200 "$bin/s2ft-train" --device cuda:0 "${steps[@]}" -o one-gpu > train.one.log 2>&1
  for run in two-gpus again; do two s2ft-train "${steps[@]}" -o $run > train.two.log 2>&1; done
  # Rank 1 killed after step 40, and both gone on from there.
  share=()
  [ "$n_gpus" -ge 2 ] || share=(TANDEM_RANKS_SHARE_GPU=1)
  rank() {
    local device=cuda:0
    [ "$n_gpus" -lt 2 ] || device=cuda
    exec env "${share[@]}" "$bin/s2ft-train" --device $device "${steps[@]}" -o killed -s run.rank=$1 -s run.world_size=2 -s run.rendezvous=meet
  }
  (rank 1) > killed.1.log 2>&1 &
  victim=$!
  (rank 0) > killed.0.log 2>&1 &
  first=$!
  for i in $(seq 3000); do
    if [ -e killed/step-000040.safetensors ] || ! kill -0 $first; then break; fi
    sleep 0.01
  done
  kill -9 $victim
  began=$(date +%s%N)
  wait $first
  say "a rank killed -9: the other ends with status $? after $((($(date +%s%N) - began) / 1000000)) ms: $(tail -n 2 killed.0.log | head -n 1)"
  two s2ft-train "${steps[@]}" -o killed --resume > killed.again.log 2>&1
  python3 - << 'EOF' | tee -a texts.log || say "losses: fails DIFFERS"
import json, pathlib
def losses(run): return [json.loads(l)["loss"] for l in open(run + "/metrics.jsonl") if '"loss"' in l]
one, two = losses("one-gpu"), losses("two-gpus")
apart = [abs(a - b) / abs(a) for a, b in zip(one, two)]
print(f"losses of {len(two)} steps on two GPUs against one: first {apart[0]:.1e}, last {apart[-1]:.1e}, most {max(apart):.1e} apart (relative)",
      "" if len(one) == len(two) and apart[0] <= 1e-6 and apart[-1] <= 1e-4 else "DIFFERS")
last = "step-000100.safetensors"
whole = pathlib.Path("two-gpus", last).read_bytes()
for run in "again", "killed":
    print(f"{run}: last checkpoint {'equal bit for bit' if pathlib.Path(run, last).read_bytes() == whole else 'DIFFERS'}")
EOF
  grep -q DIFFERS texts.log && failed=1
  lines 20 ', "adapter": "a"' > named.jsonl
  lines 20 >> named.jsonl
  for how in mix switch; do
    same adapters-$how pig-generate -m tiny-16m --prompts named.jsonl -n 16 -s "model.adapters=[{name: a, path: one-gpu/adapter}]" -s run.adapters=$how
  done
fi

limit=240
# point NAME ARGUMENT...: a point on one GPU and on two.
point() {
  local name=$1
  shift
  timeout 200 "$bin/pig-bench" --device cuda:0 "$@" --append -o ranks.jsonl > "$out/$name.one.log" 2>&1 ||
    echo "$name on one GPU: status $?"
  two pig-bench "$@" --append -o ranks.jsonl > "$out/$name.two.log" 2>&1 || { echo "$name on two: status $?"; tail -3 "$out/$name.two.log"; }
}
if does speed && [ "$n_gpus" -ge 2 ]; then
  m=synthetic:llama-3.1-8b
  point decode-1 -m $m -s run.context=1024 -s run.batch=1 -s bench.phases=[decode] -s bench.random_kv=true
  point decode-96k -m $m -s run.context=98304 -s run.batch=1 -s bench.phases=[decode] -s bench.random_kv=true
  point decode-32 -m $m -s run.context=8192 -s run.batch=32 -s bench.phases=[decode] -s bench.random_kv=true
  point prefill-32k -m $m -s run.context=32768 -s run.batch=1 -s bench.phases=[prefill] -s bench.min_runs=3 -s bench.min_time=1s
  for weights in 'int4 -s model.group=128' fp8; do
    point "decode-1-${weights%% *}" -m $m -s model.weights=$weights -s run.context=1024 -s bench.phases=[decode] -s bench.random_kv=true
  done
  point 70b-int4 -m synthetic:llama-3.1-70b -s model.weights=int4 -s model.group=128 -s run.context=1024 -s bench.phases=[decode] -s bench.random_kv=true
  # 70.6 GB of weights a rank: where two GPUs hold them
  two pig-bench -m synthetic:llama-3.1-70b -s run.context=1024 -s run.batch=1 -s bench.phases=[decode] -s bench.random_kv=true \
    --append -o ranks.jsonl > "$out/70b.log" 2>&1 || { echo "70b on two: status $?"; tail -3 "$out/70b.log"; }
fi
if does spec && [ "$n_gpus" -ge 2 ]; then
  # Keys of 32 texts of 32K tokens take 137 GB: where two GPUs hold fewer, shorter texts.
  memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
  context=$((memory > 100000 ? 32768 : 24576))
  two magicdec-bench -m synthetic:llama-3.1-8b -s run.context=$context -s run.batch=32 -s sampling.temperature=0.6 -s spec.gamma=[2,3,4] \
    -s "bench={batches: 1, warm_ups: 1, new_tokens: 48, drafts: [{name: plain, kind: none}, {name: snapkv-2049, kind: self, cache: {kind: snapkv}, budget: 2049, alpha: 0.89}]}" \
    --append -o ranks.jsonl > spec.log 2>&1 || { echo "spec on two: status $?"; tail -n 3 spec.log; }
fi
if does steps && [ "$n_gpus" -ge 2 ]; then
  # The paper's shares of the 7B model. A step of two ranks has two micro-batches of 2 x 1024 tokens, that of one has one.
  for way in 'cuda:0 2' 'cuda:1 2' 'cuda:0,1 4'; do
    set -- $way
    timeout 240 python3 "$here/train_step.py" --s2ft-train "$bin/s2ft-train" --device $1 --shape llama-2-7b --batch $2 --tokens 1024 --steps 14 \
      -s 'train.select.ratios={o: 0.052, d: 0.02}' -s train.recompute=1 -s train.micro_tokens=2050 >> train.jsonl 2>> train.log || echo "steps on $1: status $?"
  done
fi
if does full && [ "$n_gpus" -ge 2 ]; then
  memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
  shape=$([ "$memory" -gt 130000 ] && echo llama-2-7b || echo llama-3.2-1b)
  for way in 'cuda:0 2 2050' 'cuda:0,1 4 2050' 'cuda:0 8 8200' 'cuda:0,1 16 8200'; do
    set -- $way
    timeout 100 python3 "$here/train_step.py" --s2ft-train "$bin/s2ft-train" --device $1 --shape $shape --batch $2 --tokens 1024 --steps 12 \
      -s train.method=full -s train.recompute=1 -s train.micro_tokens=$3 >> train.jsonl 2>> train.log || echo "full on $1: status $?"
  done
fi
exit $failed
