#!/usr/bin/env python3
"""Does spec.draft auto choose the fastest kind of rounds, and do its predictions hold?

    round_kinds.py --bin build/bin --text FILE --work DIR [--context 16000] [--batch 64] [-o OUT.jsonl]
                   [-s KEY=VALUE...]

triforce-generate -s spec.draft=auto (tiny-16m with tiny-2m) writes behind prompts cut from FILE, chooses
shapes by times that it measures, and predicts what each kind takes; then magicdec-bench measures plain
steps, each draft alone and both nested in these shapes, behind windows of FILE of as many tokens. Prints a
row a kind: predicted and measured milliseconds a token of a sequence. A record goes to OUT. Keeps measured
times out of the cache folder: they are those of DIR."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

STREAMING = "{kind: streaming, sinks: 16, recent: 240, reposition: true, prefill: windowed}"
CHARACTERS = 3.64  # of a token of prose, about


def run(command, env):
    done = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"round_kinds.py: status {done.returncode} of {' '.join(map(str, command))}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def write_prompts(text, context, batch, path):
    n = int(context * CHARACTERS)
    if len(text) < 2 * n:
        sys.exit(f"round_kinds.py: the text has {len(text)} characters, expected {2 * n} or more")
    step = (len(text) - n) // batch
    with open(path, "w", encoding="utf-8") as file:
        for i in range(batch):
            file.write(json.dumps({"prompt": text[i * step : i * step + n]}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=Path("build/bin"))
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--context", type=int, default=16000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--device", default="auto")
    parser.add_argument("-s", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("-o", dest="out", type=Path)
    o = parser.parse_args()
    o.work.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ, TANDEM_CACHE_DIR=str(o.work / "cache"))
    prompts = o.work / "prompts.jsonl"
    write_prompts(o.text.read_text(encoding="utf-8").replace("\x1e", "\n"), o.context, o.batch, prompts)
    common = [f"run.device={o.device}", f"run.batch={o.batch}", f"sampling.temperature={o.temperature}", *o.settings]
    flags = [f for s in common for f in ("-s", s)]

    events = run([o.bin / "triforce-generate", "-r", "triforce/tiny-16m", "--prompts", prompts, "-s", "spec.draft=auto",
                  "-s", f"draft.cache.retrieval.budget={o.budget}", *flags, "-n", str(o.new_tokens),
                  "--format", "jsonl", "-q"], env)
    auto = next(e for e in events if e.get("event") == "summary")
    predicted = auto["spec"]["predicted"]
    context = auto["prompt_tokens"] // o.batch

    gammas = sorted({predicted[k]["tree"]["levels"] - 1 for k in ("small", "retrieval")})
    nested = predicted["nested"]
    drafts = ", ".join([
        f"{{name: small, kind: model, path: tiny-2m, cache: {STREAMING}}}",
        f"{{name: retrieval, kind: self, cache: {{kind: retrieval, retrieval: {{chunk: 8}}}}, budget: {o.budget}}}",
        "{name: nested, kind: nested, self: retrieval, small: small}"])
    records = run([o.bin / "magicdec-bench", "-m", "tiny-16m", *flags, "-s", f"data.path={o.text}", "-s", "run.seed=0",
                   "-s", f"run.context={context}", "-s", f"spec.gamma={gammas}",
                   "-s", f"spec.gamma1=[{nested['tree']['levels'] - 1}]", "-s", f"spec.gamma2=[{nested['gamma2']}]",
                   "-s", f"spec.inner_steps=[{nested['rounds']}]", "-s", f"bench.drafts=[{drafts}]",
                   "-s", f"bench.new_tokens={o.new_tokens}", "-s", "bench.batches=2", "-s", "bench.predict=no",
                   "--format", "jsonl"], env)
    measured = {}
    for r in records:
        name = r["workload"].get("draft", {}).get("name", "plain")
        gamma = r["workload"].get("gamma")
        if name in ("small", "retrieval") and gamma != predicted[name]["tree"]["levels"] - 1:
            continue
        measured[name] = 1e3 / r["throughput"]["decode_tok_s_user"]
    taken = {k: predicted[k]["rounds_taken"] for k in measured}
    choice, best = max(taken, key=taken.get), min(measured, key=measured.get)
    print("| kind | predicted, ms/token | measured | error | steps of auto |")
    print("|---|---:|---:|---:|---:|")
    for kind, ms in measured.items():
        at = predicted[kind]["ms_per_token"]
        print(f"| {kind} | {at:.3f} | {ms:.3f} | {100 * (at / ms - 1):+.1f} % | {taken[kind]} |")
    print(f"\nchosen: {choice}, {100 * (measured[choice] / measured[best] - 1):.1f} % above the fastest ({best})")
    if o.out:
        record = {"schema": "tandem.round-kinds/1", "git_commit": records[0].get("git_commit"),
                  "host": records[0].get("host"), "device": auto["device"], "gpu": records[0]["workload"].get("gpu"),
                  "batch": o.batch, "context_tokens": context, "budget": o.budget, "temperature": o.temperature,
                  "new_tokens": o.new_tokens, "settings": o.settings, "predicted": predicted, "measured_ms": measured,
                  "chosen": choice, "fastest": best, "auto_decode_tok_s": auto["decode_tok_s"]}
        with open(o.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
